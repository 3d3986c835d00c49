"""Spaces: products of named variables, and the states that live on them.

A *state* is a ``dict[str, Tensor]`` with any number of leading batch dimensions: a ``Real`` variable holds floats of
shape ``[..., *shape]``, a ``Categorical`` one holds int64 symbols ``0 .. n-1`` of shape ``[..., *shape]``.

Energies and draws use x; paths and networks use latent coordinates z (see `egm.spaces.variables`), in which the
reference law p_ref is a standard Gaussian for reals and uniform for symbols. A density p(x) becomes p(x(z)) |∂x/∂z| on
z.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from egm.spaces.variables import Categorical, Real, check_trailing_shape

__all__ = ["Categorical", "Real", "Space", "State", "Variable"]

State: TypeAlias = dict[str, Tensor]
Variable: TypeAlias = Real | Categorical


class Space:
    """A product of named variables.

    >>> space = Space(v=Real(2), h=Categorical(2, shape=3))
    >>> state = space.reference_sample(5, generator=torch.Generator().manual_seed(0))
    >>> space.check(state), state["h"].shape
    ((5,), torch.Size([5, 3]))
    """

    def __init__(self, *unnamed: object, **variables: Variable) -> None:
        if unnamed:
            raise TypeError("the variables of a Space must be given by name, for example Space(x=Real(2))")
        if not variables:
            raise ValueError("a Space needs at least one variable, for example Space(x=Real(2))")
        for name, variable in variables.items():
            if not isinstance(variable, Real | Categorical):
                raise TypeError(f"variable '{name}' must be egm.Real or egm.Categorical, got {type(variable).__name__}")
        self.variables: dict[str, Variable] = dict(variables)

    def __getitem__(self, name: str) -> Variable:
        return self.variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and list(self.variables.items()) == list(other.variables.items())

    def __hash__(self) -> int:
        return hash(tuple(self.variables.items()))

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={variable!r}' for name, variable in self.variables.items())})"

    @cached_property
    def real(self) -> dict[str, Real]:
        """The real variables."""
        return {name: v for name, v in self.variables.items() if isinstance(v, Real)}

    @cached_property
    def categorical(self) -> dict[str, Categorical]:
        """The categorical variables."""
        return {name: v for name, v in self.variables.items() if isinstance(v, Categorical)}

    def batch_shape(self, state: State, *, latent: bool = False) -> torch.Size:
        """Returns the common leading shape of a state; raises on unknown or missing names and on wrong shapes."""
        if state.keys() != self.variables.keys():
            raise ValueError(f"a state needs the variables {list(self.variables)}, got {list(state)}")
        batches: dict[str, torch.Size] = {}
        for name, variable in self.variables.items():
            if not isinstance(state[name], Tensor):
                raise TypeError(f"variable '{name}' must be a torch.Tensor, got {type(state[name]).__name__}")
            shape = variable.latent_shape if latent else variable.shape
            check_trailing_shape(state[name], shape, name)
            batches[name] = state[name].shape[: state[name].ndim - len(shape)]
        first = next(iter(batches.values()))
        if any(batch != first for batch in batches.values()):
            described = {name: tuple(batch) for name, batch in batches.items()}
            raise ValueError(f"all variables of a state need the same leading batch shape, got {described}")
        return first

    def check(self, state: State, *, masked: bool = False) -> tuple[int, ...]:
        """Raises unless `state` is a valid state (shapes, dtypes, ranges, finiteness); returns its batch shape."""
        batch = self.batch_shape(state)
        for name, variable in self.variables.items():
            if isinstance(variable, Categorical):
                variable.check(state[name], name, masked=masked)
            else:
                variable.check(state[name], name)
        return tuple(batch)

    def narrowed(self, state: State) -> State:
        """Returns the state with symbols in the smallest sufficient dtype (`Categorical.narrow`)."""
        return {n: x.to(self.categorical[n].narrow) if n in self.categorical else x for n, x in state.items()}

    def widened(self, state: State) -> State:
        """Returns the state with symbols as int64, the dtype that user-defined energies and networks receive."""
        return {n: x.long() if n in self.categorical else x for n, x in state.items()}

    def from_latent(self, latent: State) -> State:
        """Returns x(z) for every real variable; symbols are unchanged."""
        return {n: v.from_latent(latent[n]) if isinstance(v, Real) else latent[n] for n, v in self.variables.items()}

    def to_latent(self, state: State) -> State:
        """Returns z(x) for every real variable; symbols are unchanged."""
        return {n: v.to_latent(state[n]) if isinstance(v, Real) else state[n] for n, v in self.variables.items()}

    def log_det(self, latent: State) -> Tensor:
        """Σ log |∂x/∂z| over the real variables, shape [...]."""
        total = torch.zeros(self.batch_shape(latent, latent=True), device=next(iter(latent.values())).device)
        for name, variable in self.real.items():
            total = total + variable.log_det(latent[name])
        return total

    def reference_sample(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> State:
        """Draws n states from the reference law p_ref: standard Gaussian latents × uniform symbols."""
        latent = {
            name: reference_draw(variable, (n,), generator=generator, dtype=dtype, device=device)
            for name, variable in self.variables.items()
        }
        return self.from_latent(latent)

    def reference_log_prob(self, state: State) -> Tensor:
        """log p_ref(x), a density in x."""
        latent = self.to_latent(state)
        total = -self.log_det(latent) - sum(v.log_volume for v in self.categorical.values())
        for name, variable in self.real.items():
            total = total + variable.gaussian_log_prob(latent[name], 1.0)
        return total


def reference_draw(
    variable: Real | Categorical,
    batch: Sequence[int],
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draws latents from the reference law p_ref: standard Gaussian for reals, uniform for symbols."""
    if isinstance(variable, Real):
        return variable.noise(batch, generator=generator, dtype=dtype, device=device)
    return variable.uniform(batch, generator=generator, device=device)
