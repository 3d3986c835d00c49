"""Relabellings of symbols that leave an energy unchanged, built into a network by averaging over their group.

With n symbols, g_k x = x + k mod n at every site of every Categorical variable (the mask stays), k = 0 .. n−1, and

    F(x, t) = 1/n Σ_k g_k⁻¹ f(g_k x, t),        so that        F(g x, t) = g F(x, t)        for every network f:

g_k⁻¹ relabels a table over symbols, (g_k⁻¹ l)(y) = l(y + k mod n), and leaves means, log-rates and scalars alone. A
sampler with such logits draws x and g x with the same probability, so it cannot prefer one ordered phase to another.

For two symbols the shifts are the spin flip. For n > 2 an energy may be unchanged by all n! permutations; the n shifts
already give every symbol the same share, and cost n evaluations of the network instead of n!.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from egm.spaces import Space, State

SPIN_FLIP, SHIFT, PERMUTATION = "spin-flip", "symbol-shift", "symbol-permutation"
RELABELLINGS = (SPIN_FLIP, SHIFT, PERMUTATION)
"""The declared symmetries that are built in here; the bodies have the others (translations, rotations)."""


class Symmetrised(nn.Module):
    """A network averaged over the shifts of symbols; all n shifted states are evaluated in one batch [n, ...].

    Args:
        network: a body, or any module with its `forward` and the attribute `space`. Every Categorical variable must
            have the same number of symbols at all of its sites, since the shifts act on all variables at once.
        symmetries: declared names, one or more of `RELABELLINGS`. "spin-flip" is for two symbols; all permutations of
            more than two are served by, and recorded as, "symbol-shift".

    >>> from egm.networks.mlp import MLP
    >>> from egm.spaces import Categorical
    >>> network = Symmetrised(MLP(Space(s=Categorical(2, shape=3)), {"s": (3, 2)}), ("spin-flip",))
    >>> network.symmetries, network({"s": torch.tensor([[0, 1, 2]])}, torch.tensor(0.5))["s"].shape
    (('spin-flip',), torch.Size([1, 3, 2]))
    """

    def __init__(self, network: nn.Module, symmetries: Sequence[str]) -> None:
        super().__init__()
        if isinstance(symmetries, str) or not symmetries or any(name not in RELABELLINGS for name in symmetries):
            raise ValueError(
                f"symmetries must be a tuple with names among {list(RELABELLINGS)}, got {symmetries!r}; `symmetrise`"
                " selects them from the symmetries that a target declares"
            )
        if not isinstance(space := getattr(network, "space", None), Space):
            raise TypeError(
                f"{type(network).__name__} must have the attribute `space`, the egm.Space of its states, which"
                f" defines its symbols; got {space!r}"
            )
        counts = {name: variable.n for name, variable in space.categorical.items()}
        n = next(iter(counts.values()), None)
        if not isinstance(n, int) or len(set(counts.values())) != 1:
            raise ValueError(
                f"{list(symmetries)} relabels the symbols of all Categorical variables at once, so they must have one"
                f" number of symbols at every site; got n = {counts}; build the symmetry into your own network"
            )
        if SPIN_FLIP in symmetries and n != 2:
            raise ValueError(f"'{SPIN_FLIP}' exchanges two symbols, but there are {n}; declare '{SHIFT}'")
        self.network, self.space, self.n = network, space, n
        own = [SHIFT if name == PERMUTATION and n > 2 else name for name in symmetries]
        self.symmetries: tuple[str, ...] = tuple(dict.fromkeys([*getattr(network, "symmetries", ()), *own]))

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """Trailing shapes of the outputs of the network."""
        return cast(dict[str, tuple[int, ...]], self.network.outputs)

    def forward(self, state: State, t: Tensor) -> State:
        """Returns F(x_t, t): logits are relabelled with the state, and all other outputs are invariant."""
        # the new axis comes first, where t broadcasts over it
        stacked = {
            name: shifted(x, self.n) if name in self.space.categorical else x.expand(self.n, *x.shape)
            for name, x in state.items()
        }
        result: State = {}
        for name, outputs in self.network(stacked, t).items():
            if name in self.space.categorical:
                outputs = torch.stack([logits.roll(-k, -1) for k, logits in enumerate(outputs)])  # noqa: PLW2901
            result[name] = outputs.mean(0)
        return result


def symmetrise(body: nn.Module, target_symmetries: Sequence[str]) -> nn.Module:
    """Returns the body with the relabellings among a target's `symmetries` built in; the body itself if there is none.

    >>> from egm.networks.mlp import MLP
    >>> from egm.targets import Ising
    >>> target = Ising(3, 0.4)
    >>> type(symmetrise(MLP(target.space, {"energy": ()}), target.symmetries)).__name__
    'Symmetrised'
    """
    names = tuple(name for name in target_symmetries if name in RELABELLINGS)
    return Symmetrised(body, names) if names else body


def shifted(x: Tensor, n: int) -> Tensor:
    """Returns all shifts g_k x of symbols x [...], [n, ...] in their dtype; the mask symbol n stays.

    >>> shifted(torch.tensor([0, 1, 2, 3]), 3).tolist()
    [[0, 1, 2, 3], [1, 2, 0, 3], [2, 0, 1, 3]]
    """
    k = torch.arange(n, device=x.device, dtype=x.dtype).reshape(n, *(1,) * x.ndim)
    return torch.where(x == n, x, (x + k) % n)
