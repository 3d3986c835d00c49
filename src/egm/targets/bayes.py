"""Bayesian posteriors with discrete latent variables, exact by enumeration while they are small.

The energy is −log p(y, latents) with every constant, so log Z is the log evidence log p(y).

*Spike and slab regression* of y [n] on X [n, p]:

    y | β, γ ~ N(X(γ∘β), s²I),    β_j ~ N(0, τ²),    γ_j ~ Bernoulli(ρ).

β_j keeps its prior where γ_j = 0, so the space does not change with γ. With D = diag(γ), given γ

    β | γ, y ~ N(P⁻¹DXᵀy/s², P⁻¹),    P = DXᵀXD/s² + I/τ²,
    log p(y | γ) = −½[n log 2πs² + log det(τ²P) + ‖y‖²/s² − (DXᵀy/s²)ᵀ P⁻¹ (DXᵀy/s²)].

*Gaussian mixture* of y [n] with k equally likely components:

    y_i | μ, z ~ N(μ_{z_i}, s²),    μ_j ~ N(0, τ²),    z_i uniform on k symbols.

With n_j and S_j the number and the sum of the data of component j, given z

    μ_j | z, y ~ N(τ²S_j/(s² + n_jτ²), s²τ²/(s² + n_jτ²)),
    log p(y | z) = −½[n log 2πs² + ‖y‖²/s² + Σ_j log(1 + n_jτ²/s²) − Σ_j τ²S_j²/(s²(s² + n_jτ²))].
"""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from egm.mcmc import HMC, Alternate, Gibbs, Kernel
from egm.mcmc.reference import ReferencePlan
from egm.spaces import Categorical, Real, Space, State
from egm.targets.base import Target
from egm.targets.support import Constants, describe, require_positive, whole_number

MAX_COEFFICIENTS = 14
MAX_ASSIGNMENTS = 2**16
LOG_2PI = math.log(2 * math.pi)


@final
class SpikeSlab(Target):
    """Variables beta: Real(p, scale=slab) and gamma: Categorical(2, p).

    Args:
        X: design, [n, p].
        y: response, [n].
        noise: s, standard deviation of the noise.
        slab: τ, prior standard deviation of the coefficients (and the scale of beta).
        inclusion: ρ, prior probability that a coefficient enters.

    Up to 14 coefficients the 2^p models are enumerated; beyond, the reference is MCMC and `log_z` is None.

    >>> target = SpikeSlab([[1.0], [1.0]], [2.0, 3.0])
    >>> target.inclusion_probabilities
    tensor([0.9738], dtype=torch.float64)
    """

    def __init__(self, X: object, y: object, *, noise: float = 1.0, slab: float = 1.0, inclusion: float = 0.5) -> None:
        design, response = _data("X", X, axes=2), _data("y", y, axes=1)
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
        shown = {"X": _Fingerprint(design), "y": _Fingerprint(response)}
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
        """The Cholesky factor of P [m, p, p] and DXᵀy/s² [m, p] for models γ [m, p]."""
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
        """Every γ [2^p, p] and its posterior probability [2^p]."""
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
        return _mixed_plan(self)


@final
class GaussianMixturePosterior(Target):
    """Variables mu: Real(k, scale=prior_scale) and z: Categorical(k, n).

    Args:
        y: data, [n].
        k: number of components.
        noise: s, standard deviation of each component.
        prior_scale: τ, prior standard deviation of the means (and the scale of mu).

    Up to 2^16 assignments kⁿ are enumerated; beyond, the reference is MCMC and `log_z` is None.

    >>> round(GaussianMixturePosterior([0.0, 1.0], 1).log_z or 0, 4)
    -3.5733
    """

    symmetries = ("label permutation",)

    def __init__(self, y: object, k: int, *, noise: float = 1.0, prior_scale: float = 3.0) -> None:
        self._y = _data("y", y, axes=1)
        require_positive(noise=noise, prior_scale=prior_scale)
        k = whole_number("k", k, least=1)
        self.k, self.noise, self.prior_scale = k, float(noise), float(prior_scale)
        self._constants = Constants(y=self._y)
        n = len(self._y)
        space = Space(mu=Real(k, scale=prior_scale), z=Categorical(k, n))
        name = describe(self, y=_Fingerprint(self._y), k=k, noise=noise, prior_scale=prior_scale)
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
        """n_j and S_j, [m, k] each, for assignments z [m, n]."""
        zeros = torch.zeros(len(z), self.k, dtype=torch.float64)
        y = self._y.expand(z.shape)
        return zeros.scatter_add(1, z, torch.ones_like(y)), zeros.scatter_add(1, z, y)

    @property
    def together_probabilities(self) -> Tensor:
        """Exact posterior p(z_i = z_j | y), [n, n] float64, which no relabelling changes; up to 2^16 assignments."""
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
        """Every z [kⁿ, n] and its posterior probability [kⁿ]."""
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
        return _mixed_plan(self, Relabel(self))


def _mixed_plan(target: Target, *more: Kernel) -> ReferencePlan:
    kernel = Alternate([Gibbs(target), HMC(target, leapfrog_steps=5), *more])
    return ReferencePlan(kernel, chains=256, warmup=500, steps=400, thin=10)


class Relabel(Kernel):
    """Permute the components of a mixture at random, which leaves its energy as it is.

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


class _Fingerprint:
    """Prints an array as its shape and a digest of its content, so that targets on different data print differently."""

    def __init__(self, array: Tensor) -> None:
        digest = hashlib.sha256(array.contiguous().numpy().tobytes()).hexdigest()[:8]
        self._shown = f"<{'x'.join(map(str, array.shape))} {digest}>"

    def __repr__(self) -> str:
        return self._shown


def _data(name: str, value: object, *, axes: int) -> Tensor:
    array = torch.as_tensor(value, dtype=torch.float64).detach().cpu().clone()
    if array.ndim != axes or 0 in array.shape:
        expected = "a vector [n]" if axes == 1 else "a matrix [n, p]"
        raise ValueError(f"{name} must be {expected} with at least one entry, got shape {tuple(array.shape)}")
    if not bool(torch.isfinite(array).all()):
        raise ValueError(f"{name} holds NaN or infinite entries; drop those rows or fill them in")
    return array


def _logit(p: float) -> float:
    return math.log(p) - math.log1p(-p)
