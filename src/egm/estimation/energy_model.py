"""The learned intermediate energy E^φ_t(x_t) ≈ −log ∫ p_{t|1}(x_t | x_1) exp(−E(x_1)) dx_1.

    E^φ_t(x_t) = −log p^ref_t(x_t) − log N_sym + E_partial(x_t) + offset + scale · NN(x_t, t)

p^ref_t is the reference law (standard Gaussian × uniform symbols) carried along the path, and N_sym the number of
values of the symbols, so for a masked path the first two terms are −#masked·log(N (1−κ_t)) − #revealed·log κ_t: the
terms of the path's normaliser, which no network should have to learn. E_partial, the *forward-looking* part, holds the
terms of the energy that the revealed sites already determine. On a purely masked space the network is then switched off
where no site is masked, so that E^φ is the energy itself there.

Noised energy matching regresses E^φ_t on the importance-sampling estimate Ê_t; offset and scale are set once from the
first estimates (at late times, if training begins there), so that the network's output is of about unit size.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from egm.networks.base import is_built_in
from egm.paths.product import ProductPath
from egm.spaces import State
from egm.targets.base import Target


class EnergyModel(nn.Module):
    """E^φ on latent states.

    Args:
        network: maps (latent state, t) to one number for each state, [...].
        path: the path of every variable.
        target: the target, for its partial energy; None without a target.
        forward_looking: whether to add the partial energy; by default if the target has one and every path is masked.
    """

    offset: Tensor
    scale: Tensor

    def __init__(
        self, network: nn.Module, path: ProductPath, target: Target | None, *, forward_looking: bool | None = None
    ) -> None:
        super().__init__()
        self.network = network
        self._path, self._target = path, target
        has_terms = target is not None and target.has_partial_energy
        possible = has_terms and path.reveals
        if forward_looking and not possible:
            raise ValueError(
                f"forward_looking needs masked paths and a target with a partial energy; {target!r} on these paths"
                " does not have both; leave forward_looking out"
            )
        self.forward_looking = possible if forward_looking is None else forward_looking
        self.register_buffer("offset", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def known(self, x_t: State, t: Tensor) -> Tensor:
        """Returns all terms of E^φ but the network's, [...]."""
        symbols = sum(variable.log_volume for variable in self._path.space.categorical.values())
        energy = -self._path.prior_log_prob(x_t, t) - symbols
        if self._target is None or not self.forward_looking:
            return energy
        with torch.autocast(t.device.type, enabled=False):  # only the network is rounded, not the target's terms
            return energy + self._target.partial_energy(**x_t)

    def forward(self, x_t: State, t: Tensor, *, network: nn.Module | None = None) -> Tensor:
        """Returns E^φ_t(x_t), [...]; `network`, such as a running average, is used instead of the trained network."""
        seen = x_t if is_built_in(self.network) else self._path.space.widened(x_t)
        learned = self.offset + self.scale * (network or self.network)(seen, t)
        known = self.known(x_t, t)
        return known + learned * unfinished(self._path, x_t) if self.forward_looking else known + learned

    def with_network(self, network: nn.Module) -> EnergyModel:
        """Returns the same model, with its offset and scale, on another network."""
        other = EnergyModel(network, self._path, self._target, forward_looking=self.forward_looking)
        other.offset, other.scale = self.offset, self.scale
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> EnergyModel:
        return self.with_network(copy.deepcopy(self.network, memo))  # the target is shared

    @torch.no_grad()
    def calibrate(self, x_t: State, t: Tensor, target: Tensor) -> None:
        """Sets offset and scale from estimates Ê_t at states x_t, such that the network's residual has unit size."""
        residual = target - self.known(x_t, t)
        finite = residual[torch.isfinite(residual)]
        if len(finite) > 1:
            self.offset.copy_(finite.median())
            self.scale.copy_((finite - finite.median()).abs().mean().clamp(min=1.0))

    def loss(self, x_t: State, t: Tensor, target: Tensor, *, clip: float | None = None) -> Tensor:
        """Returns the loss of noised energy matching: the squared error to Ê_t over `scale`², averaged over the batch.

        Estimates are clipped from above at `clip`. Without `clip`, infinite estimates (every proposal has zero
        density) are left out.
        """
        target = target if clip is None else target.clamp(max=clip)
        usable = torch.isfinite(target)
        error = (self(x_t, t) - torch.where(usable, target, 0.0)) / self.scale
        return torch.where(usable, error, 0.0).square().sum() / usable.sum().clamp(min=1)


def unfinished(path: ProductPath, x_t: State) -> Tensor:
    """Returns whether any site is still masked, bool [...]; the path must have a masked variable."""
    left = [part.occurrences(x_t[name], part.variable.mask) > 0 for name, part in path.revealing.items()]
    return torch.stack(left).any(0)
