"""Spike and slab regression of y [n] on X [n, p], exact by enumeration if p is small:

    y | β, γ ~ N(X(γ∘β), s²I),    β_j ~ N(0, τ²),    γ_j ~ Bernoulli(ρ).

β_j keeps its prior where γ_j = 0, so the space does not change with γ. With D = diag(γ), given γ

    β | γ, y ~ N(P⁻¹DXᵀy/s², P⁻¹),    P = DXᵀXD/s² + I/τ²,
    log p(y | γ) = −½[n log 2πs² + log det(τ²P) + ‖y‖²/s² − (DXᵀy/s²)ᵀ P⁻¹ (DXᵀy/s²)].

The energy is −log p(y, β, γ) with every constant, so log Z is the log evidence log p(y).
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from egm.mcmc.reference import ReferencePlan
from egm.spaces import Categorical, Real, Space, State
from egm.targets.base import Target
from egm.targets.posteriors import LOG_2PI, Fingerprint, data_tensor, mixed_plan
from egm.targets.support import Constants, describe, require_positive

MAX_COEFFICIENTS = 14


@final
class SpikeSlab(Target):
    """Variables beta: Real(p, scale=slab) and gamma: Categorical(2, p).

    Args:
        X: design, [n, p].
        y: response, [n].
        noise: s, standard deviation of the noise.
        slab: τ, prior standard deviation of the coefficients (and the scale of beta).
        inclusion: ρ, prior probability that a coefficient is included.

    Up to 14 coefficients the 2^p models are enumerated; with more, the reference is MCMC and `log_z` is None.

    >>> target = SpikeSlab([[1.0], [1.0]], [2.0, 3.0])
    >>> target.inclusion_probabilities
    tensor([0.9738], dtype=torch.float64)
    """

    def __init__(self, X: object, y: object, *, noise: float = 1.0, slab: float = 1.0, inclusion: float = 0.5) -> None:
        design, response = data_tensor("X", X, axes=2), data_tensor("y", y, axes=1)
        require_positive(noise=noise, slab=slab)
        if not 0 < inclusion < 1:
            raise ValueError(f"inclusion must be a probability strictly between 0 and 1, got {inclusion}")
        if len(design) != len(response):
            raise ValueError(f"X has {len(design)} rows, but y has {len(response)} entries; they must agree")
        self.noise, self.slab, self.inclusion = float(noise), float(slab), float(inclusion)
        self._X, self._y = design, response
        self._constants = Constants(X=design, y=response)
        p = design.shape[1]
        space = Space(beta=Real(p, scale=slab), gamma=Categorical(2, p))
        shown = {"X": Fingerprint(design), "y": Fingerprint(response)}
        name = describe(self, **shown, noise=noise, slab=slab, inclusion=inclusion)
        super().__init__(space, self._negative_log_joint, name=name)
        self.reference_kind = "exact" if p <= MAX_COEFFICIENTS else "mcmc"

    def _negative_log_joint(self, beta: Tensor, gamma: Tensor) -> Tensor:
        c = self._constants.like(beta)
        n, p = self._X.shape
        included = gamma.to(beta.dtype)
        residual = c.y - (included * beta) @ c.X.T
        data = 0.5 * (residual.square().sum(-1) / self.noise**2 + n * (LOG_2PI + 2 * math.log(self.noise)))
        prior = 0.5 * (beta.square().sum(-1) / self.slab**2 + p * (LOG_2PI + 2 * math.log(self.slab)))
        return data + prior - included.sum(-1) * _logit(self.inclusion) - p * math.log1p(-self.inclusion)

    @cached_property
    def _models(self) -> tuple[Tensor, Tensor]:
        """Every γ [2^p, p] and log p(y, γ) [2^p], float64."""
        n, p = self._X.shape
        gamma = torch.arange(2**p)[:, None] >> torch.arange(p) & 1
        cholesky, projected = self._posterior(gamma)
        log_det = 2 * (cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1) + p * math.log(self.slab))
        explained = torch.cholesky_solve(projected[..., None], cholesky)[..., 0].mul(projected).sum(-1)
        constant = n * (LOG_2PI + 2 * math.log(self.noise)) + float(self._y.square().sum()) / self.noise**2
        log_prior = gamma.double().sum(-1) * _logit(self.inclusion) + p * math.log1p(-self.inclusion)
        return gamma, log_prior - 0.5 * (constant + log_det - explained)

    def _posterior(self, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the Cholesky factor of P [m, p, p] and DXᵀy/s² [m, p] for models γ [m, p]."""
        included = gamma.double()
        gram = self._X.T @ self._X / self.noise**2
        prior = torch.eye(gamma.shape[-1], dtype=torch.float64) / self.slab**2
        precision = included[:, :, None] * gram * included[:, None, :] + prior
        return torch.linalg.cholesky(precision), included * (self._X.T @ self._y) / self.noise**2

    @property
    def inclusion_probabilities(self) -> Tensor:
        """Exact posterior p(γ_j = 1 | y), [p] float64; up to 14 coefficients."""
        gamma, share = self._exact_models("inclusion probabilities")
        return share @ gamma.double()

    @property
    def coefficient_means(self) -> Tensor:
        """Exact posterior means E[γ_jβ_j | y], [p] float64; up to 14 coefficients."""
        gamma, share = self._exact_models("means of coefficients")
        cholesky, projected = self._posterior(gamma)
        return share @ (gamma * torch.cholesky_solve(projected[..., None], cholesky)[..., 0])

    def _exact_models(self, what: str) -> tuple[Tensor, Tensor]:
        """Returns every γ [2^p, p] and its posterior probability [2^p]."""
        if self.reference_kind != "exact":
            raise ValueError(
                f"exact {what} need at most {MAX_COEFFICIENTS} coefficients, got {self._X.shape[1]};"
                " estimate them from exact_sample(n)"
            )
        gamma, log_joint = self._models
        return gamma, log_joint.softmax(0)

    def _log_z(self) -> float | None:
        return float(self._models[1].logsumexp(0)) if self.reference_kind == "exact" else None

    def _exact_sample(self, n: int, seed: int) -> State:
        if self.reference_kind != "exact":
            return super()._exact_sample(n, seed)
        generator = torch.Generator().manual_seed(seed)
        gamma, log_joint = self._models
        gamma = gamma[torch.multinomial(log_joint.softmax(0), n, replacement=True, generator=generator)]
        cholesky, projected = self._posterior(gamma)
        mean = torch.cholesky_solve(projected[..., None], cholesky)
        noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
        beta = mean + torch.linalg.solve_triangular(cholesky.mT, noise, upper=True)
        return {"beta": beta[..., 0].to(torch.get_default_dtype()), "gamma": gamma}

    def _reference_plan(self) -> ReferencePlan:
        return mixed_plan(self)


def _logit(p: float) -> float:
    return math.log(p) - math.log1p(-p)
