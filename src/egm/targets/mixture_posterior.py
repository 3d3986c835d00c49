"""Posterior of a Gaussian mixture of y [n] with k equally likely components, exact by enumeration if kⁿ is small:

    y_i | μ, z ~ N(μ_{z_i}, s²),    μ_j ~ N(0, τ²),    z_i uniform on k symbols.

With n_j and S_j the number and the sum of the data of component j, given z

    μ_j | z, y ~ N(τ²S_j/(s² + n_jτ²), s²τ²/(s² + n_jτ²)),
    log p(y | z) = −½[n log 2πs² + ‖y‖²/s² + Σ_j log(1 + n_jτ²/s²) − Σ_j τ²S_j²/(s²(s² + n_jτ²))].

The energy is −log p(y, μ, z) with every constant, so log Z is the log evidence log p(y).
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from egm.mcmc import Kernel
from egm.mcmc.reference import ReferencePlan
from egm.spaces import Categorical, Real, Space, State
from egm.targets.base import Target
from egm.targets.posteriors import LOG_2PI, Fingerprint, data_tensor, mixed_plan
from egm.targets.support import Constants, describe, require_positive, whole_number

MAX_ASSIGNMENTS = 2**16


@final
class GaussianMixturePosterior(Target):
    """Variables mu: Real(k, scale=prior_scale) and z: Categorical(k, n).

    Args:
        y: data, [n].
        k: number of components.
        noise: s, standard deviation of each component.
        prior_scale: τ, prior standard deviation of the means (and the scale of mu).

    Up to 2^16 assignments kⁿ are enumerated; with more, the reference is MCMC and `log_z` is None.

    >>> round(GaussianMixturePosterior([0.0, 1.0], 1).log_z or 0, 4)
    -3.5733
    """

    symmetries = ("label permutation",)

    def __init__(self, y: object, k: int, *, noise: float = 1.0, prior_scale: float = 3.0) -> None:
        self._y = data_tensor("y", y, axes=1)
        require_positive(noise=noise, prior_scale=prior_scale)
        k = whole_number("k", k, least=1)
        self.k, self.noise, self.prior_scale = k, float(noise), float(prior_scale)
        self._constants = Constants(y=self._y)
        n = len(self._y)
        space = Space(mu=Real(k, scale=prior_scale), z=Categorical(k, n))
        name = describe(self, y=Fingerprint(self._y), k=k, noise=noise, prior_scale=prior_scale)
        super().__init__(space, self._negative_log_joint, name=name)
        self.reference_kind = "exact" if n * math.log(k) <= math.log(MAX_ASSIGNMENTS) + 1e-9 else "mcmc"

    def _negative_log_joint(self, mu: Tensor, z: Tensor) -> Tensor:
        n = len(self._y)
        residual = self._constants.like(mu).y - mu.gather(-1, z)
        data = 0.5 * (residual.square().sum(-1) / self.noise**2 + n * (LOG_2PI + 2 * math.log(self.noise)))
        scale = self.prior_scale
        prior = 0.5 * (mu.square().sum(-1) / scale**2 + self.k * (LOG_2PI + 2 * math.log(scale)))
        return data + prior + n * math.log(self.k)

    @cached_property
    def _assignments(self) -> tuple[Tensor, Tensor]:
        """Every z [kⁿ, n] and log p(y, z) [kⁿ], float64."""
        n = len(self._y)
        z = torch.arange(self.k**n)[:, None] // self.k ** torch.arange(n) % self.k
        size, total = self._statistics(z)
        s2, t2 = self.noise**2, self.prior_scale**2
        fit = (t2 * total.square() / (s2 * (s2 + size * t2))).sum(-1)
        constant = n * (LOG_2PI + math.log(s2) + 2 * math.log(self.k)) + float(self._y.square().sum()) / s2
        return z, -0.5 * (constant + torch.log1p(size * t2 / s2).sum(-1) - fit)

    def _statistics(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Returns n_j and S_j, [m, k] each, for assignments z [m, n]."""
        zeros = torch.zeros(len(z), self.k, dtype=torch.float64)
        y = self._y.expand(z.shape)
        return zeros.scatter_add(1, z, torch.ones_like(y)), zeros.scatter_add(1, z, y)

    @property
    def together_probabilities(self) -> Tensor:
        """Exact posterior p(z_i = z_j | y), [n, n] float64, invariant to relabelling; up to 2^16 assignments."""
        z, share = self._exact_assignments("probabilities")
        return torch.stack([share @ (z == z[:, i : i + 1]).double() for i in range(z.shape[1])])

    @property
    def fitted_means(self) -> Tensor:
        """Exact posterior means E[μ_{z_i} | y] of each datum's component, [n] float64; up to 2^16 assignments."""
        z, share = self._exact_assignments("means")
        return share @ self._component_means(z).gather(1, z)

    @property
    def component_mean(self) -> float:
        """Exact posterior mean E[μ_j | y], the same for every label j; up to 2^16 assignments."""
        z, share = self._exact_assignments("means")
        return float(share @ self._component_means(z).mean(1))

    def _exact_assignments(self, what: str) -> tuple[Tensor, Tensor]:
        """Returns every z [kⁿ, n] and its posterior probability [kⁿ]."""
        if self.reference_kind != "exact":
            raise ValueError(
                f"exact {what} need at most {MAX_ASSIGNMENTS} assignments, got {self.k}^{len(self._y)};"
                " estimate them from exact_sample(n)"
            )
        z, log_joint = self._assignments
        return z, log_joint.softmax(0)

    def _component_means(self, z: Tensor) -> Tensor:
        """E[μ_j | z, y], [m, k], for assignments z [m, n]."""
        size, total = self._statistics(z)
        s2, t2 = self.noise**2, self.prior_scale**2
        return t2 * total / (s2 + size * t2)

    def _log_z(self) -> float | None:
        return float(self._assignments[1].logsumexp(0)) if self.reference_kind == "exact" else None

    def _exact_sample(self, n: int, seed: int) -> State:
        if self.reference_kind != "exact":
            return super()._exact_sample(n, seed)
        generator = torch.Generator().manual_seed(seed)
        z, log_joint = self._assignments
        z = z[torch.multinomial(log_joint.softmax(0), n, replacement=True, generator=generator)]
        size, _ = self._statistics(z)
        s2, t2 = self.noise**2, self.prior_scale**2
        noise = torch.randn(n, self.k, generator=generator, dtype=torch.float64)
        mu = self._component_means(z) + (s2 * t2 / (s2 + size * t2)).sqrt() * noise
        return {"mu": mu.to(torch.get_default_dtype()), "z": z}

    def _reference_plan(self) -> ReferencePlan:
        return mixed_plan(self, Relabel(self))


class Relabel(Kernel):
    """A kernel that permutes the components of a mixture at random, which leaves the energy unchanged.

    Single-site moves cannot swap the labels of two separated clusters; this move does so at every step.
    """

    def __init__(self, target: GaussianMixturePosterior) -> None:
        self.target = target

    def __repr__(self) -> str:
        return "Relabel()"

    def step(
        self, latent: State, *, generator: torch.Generator, inverse_temperature: Tensor | float = 1.0
    ) -> tuple[State, Tensor]:
        mu, z = latent["mu"], latent["z"]
        new_label = torch.rand(mu.shape, generator=generator, device=mu.device).argsort(-1)
        moved = torch.empty_like(mu).scatter(-1, new_label, mu)
        return {"mu": moved, "z": new_label.gather(-1, z)}, torch.ones(mu.shape[:-1], device=mu.device)
