"""Connects torch and NumPyro: energies of a target as JAX callbacks (`Bridge`), and states as sites (`Layout`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from egm.spaces import Space, State
from egm.targets.base import Target

Sites = dict[str, Any]  # JAX or NumPy arrays by the names of NumPyro's sites


class Bridge:
    """U and ∇U of a target on NumPy arrays of latent states, in the order of the space's variables.

    An exception must not pass through JAX: the first one is kept, NaN is returned, and `check` raises the exception.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._error: Exception | None = None

    def check(self) -> None:
        """Raises the exception that an energy call has raised."""
        if self._error is not None:
            raise self._error

    def energy(self, *arrays: Any) -> NDArray[Any]:
        """Returns U, [...]."""
        latent = self._latent(arrays)
        like = next(latent[name] for name in self.target.space.real)
        batch = self.target.space.batch_shape(latent, latent=True)
        try:
            with torch.no_grad():
                found = self.target.latent_energy(self.projected(latent)) + self._confinement(latent)
        except Exception as error:
            self._error = self._error or error
            found = like.new_full(batch, torch.nan)
        return found.to(like.dtype).numpy()

    def energy_and_gradient(self, *arrays: Any) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """Returns U, [...], and its gradient with respect to each real variable."""
        latent = self._latent(arrays)
        reals = {name: latent[name] for name in self.target.space.real}
        like = next(iter(reals.values()))
        try:
            found, gradient = self.target.latent_energy_and_gradient(self.projected(latent))
            found = found + self._confinement(latent)
            outside = self._outside(latent)
            gradient = {name: g + outside[name] if name in outside else g for name, g in gradient.items()}
        except Exception as error:
            self._error = self._error or error
            found = like.new_full(self.target.space.batch_shape(latent, latent=True), torch.nan)
            gradient = {name: torch.full_like(x, torch.nan) for name, x in reals.items()}
        return found.to(like.dtype).numpy(), {name: g.to(like.dtype).numpy() for name, g in gradient.items()}

    def projected(self, latent: State) -> State:
        """Projects centred variables on centred states."""
        real = self.target.space.real
        return {name: real[name].project(z) if name in real else z for name, z in latent.items()}

    def _outside(self, latent: State) -> State:
        """Returns z − Pz of each centred variable."""
        centred = {name: v for name, v in self.target.space.real.items() if v.centered}
        return {name: latent[name] - v.project(latent[name]) for name, v in centred.items()}

    def _confinement(self, latent: State) -> Tensor | float:
        """Returns Σ ½‖z − Pz‖², [...]."""
        batch = self.target.space.batch_shape(latent, latent=True)
        return sum(0.5 * z.square().reshape(*batch, -1).sum(-1) for z in self._outside(latent).values())

    def _latent(self, arrays: tuple[Any, ...]) -> State:
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]  # copies: JAX's own memory is read-only
        latent = dict(zip(self.target.space, tensors, strict=True))
        for name, variable in self.target.space.categorical.items():
            # A chain that has tried all symbols of its site continues until the others have; the surplus is discarded.
            most = torch.as_tensor(variable.counts(latent[name])) - 1
            latent[name] = torch.minimum(latent[name].long(), most)
        return latent


@dataclass(frozen=True)
class Layout:
    """States as NumPyro's sites: a Real is a site of the same name. NumPyro needs equal numbers of symbols within a
    site, so a Categorical is one site "name/n" for each number n of symbols, over the places that have n symbols.
    """

    space: Space

    def groups(self, name: str) -> dict[str, tuple[int, NDArray[np.int64]]]:
        """Returns the number of symbols and the places (flat) for each site of a categorical variable."""
        variable = self.space.categorical[name]
        counts = np.asarray(torch.as_tensor(variable.n).expand(variable.shape).flatten())
        return {f"{name}/{n}": (int(n), np.flatnonzero(counts == n)) for n in np.unique(counts)}

    def sites(self, latent: State, *, dtype: Any) -> Sites:
        """Returns sites [chains, ...] of latent states [chains, ...], reals in the dtype that JAX computes with."""
        found: Sites = {name: latent[name].cpu().numpy().astype(dtype) for name in self.space.real}
        for name in self.space.categorical:
            flat = latent[name].flatten(1).cpu().numpy().astype(np.int32)
            found.update({site: flat[:, places] for site, (_, places) in self.groups(name).items()})
        return found

    def state(self, kept: list[Sites]) -> State:
        """Returns latent states [steps, chains, ...] of sites [chains, ...] at each step."""
        found: State = {}
        for name, variable in self.space.variables.items():
            if name in self.space.real:
                found[name] = torch.from_numpy(np.stack([sites[name] for sites in kept]))
                continue
            groups = self.groups(name)
            batch = (len(kept), len(kept[0][next(iter(groups))]))
            flat = np.zeros((*batch, self.space.categorical[name].sites), dtype=np.int64)
            for site, (_, places) in groups.items():
                flat[..., places] = np.stack([sites[site] for sites in kept])
            found[name] = torch.from_numpy(flat.reshape(*batch, *variable.shape))
        return found
