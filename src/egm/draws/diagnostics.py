"""Diagnostics of importance weights: Pareto k̂, log Z of two halves, and the EUBO of exact samples.

*Pareto k̂* (Vehtari, Simpson, Gelman, Yao, Gabry, "Pareto smoothed importance sampling"). The M = ⌈min(n/5, 3√n)⌉
largest weights, minus the next one, are fitted by a generalised Pareto law of density (1/σ)(1 + k x/σ)^{−1−1/k}, whose
moments of order 1/k and above are infinite: with k ≥ ½ weights have no variance, with k ≥ 1 no mean. With b = −k/σ the
likelihood is maximal over k at k(b) = mean log(1 − b x), which leaves a profile L(b) = M(log(−b/k(b)) − k(b) − 1);
Zhang and Stephens (2009) average b over a grid with weights exp L(b). A prior worth ten observations pulls the result
towards ½: k̂ = (M k + 10·½)/(M + 10). Above min(1 − 1/log₁₀ n, 0.7), error bars from n draws are unreliable.

*Halves.* log Z of the first and of the second half of the draws are compared, in units of the standard error of their
difference.

*EUBO*, where the target has an exact sampler. With p and q the laws of exact and of simulated paths and w = Z dp/dq,

    ELBO = E_q[log w] = log Z − KL(q‖p) ≤ log Z ≤ EUBO = E_p[log w] = log Z + KL(p‖q) ≤ log E_p[w] = log Z − log ESS.

Weighted draws also estimate the EUBO: Σ w̄_i log w_i → E_p[log w], with the standard error of any expectation. The EUBO
of exact samples therefore needs no rule of thumb: the test compares two independent estimates of the same number.
Suppose q puts no more than η on a part of the target with mass m, and no draw falls there. Then log Z and Σ w̄ log w
describe only the rest of the target, and the two EUBOs differ by

    m [log(m/η) − log(1 − m)] > 0,

which is large for a lost mode (half the mass, η = e^{−20}: 10 nats; one percent of it: 0.15), while ESS and k̂ look
perfect. No sampler can cause a EUBO below the weights' prediction or below log Z: some density in w is then wrong.
The test tolerates four standard errors plus `EUBO_TOLERANCE` + `EUBO_SHARE`·(−log ESS). The first term covers rounding,
when weights barely vary, and lost parts with a mass of about one in a thousand. The second term, a tenth of the largest
EUBO − log Z that the ESS allows (the inequality above), covers the error of Σ w̄ log w, which is skewed when weights
are uneven. Smaller lost parts go undetected, as do parts that contain neither a draw nor an exact sample.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit
from torch import Tensor

SIGMAS = 4.0  # standard errors that count as a contradiction
EUBO_TOLERANCE, EUBO_SHARE = 0.01, 0.1
MIN_TAIL = 5  # least number of weights for a fit of the tail


def weight_ess(log_weights: Tensor) -> Tensor:
    """1/(n Σ w̄²): effective sample size along the last axis as a fraction of its n weights; NaN where all are zero."""
    return 1 / (torch.softmax(log_weights, -1).square().sum(-1) * log_weights.shape[-1])


def pareto_k(log_weights: Tensor | ArrayLike) -> float:
    """Returns Pareto k̂ from log-weights [n]; a common factor of the weights cancels, −inf means weight zero.

    Returns:
        k̂; −inf where the largest weights are all equal (no tail); NaN where it cannot be estimated: fewer than 25
        draws, or fewer than five weights above the rest of a tail full of ties.

    >>> u = np.random.default_rng(0).random(10_000)
    >>> abs(pareto_k(-0.6 * np.log(u)) - 0.6) < 0.15
    True
    """
    log_w = np.sort(_vector(log_weights))
    n = len(log_w)
    tail = math.ceil(min(n / 5, 3 * math.sqrt(n)))
    if tail < MIN_TAIL or log_w[-1] == -np.inf:
        return math.nan
    cut, top = log_w[-tail - 1], log_w[-1]
    above = log_w[log_w > cut]
    if len(above) == 0:
        return -math.inf
    if len(above) < MIN_TAIL:
        return math.nan
    # Far below the top an exceedance underflows to zero, but it must stay positive because it enters as a divisor.
    exceedance = np.maximum(np.exp(above - top) * -np.expm1(cut - above), 1e-300)
    return (len(above) * _pareto_shape(exceedance) + 10 * 0.5) / (len(above) + 10)


def pareto_k_limit(n: int) -> float:
    """Returns the largest k̂ for which n draws suffice, min(1 − 1/log₁₀ n, 0.7).

    >>> pareto_k_limit(100), pareto_k_limit(10_000)
    (0.5, 0.7)
    """
    return min(1 - 1 / math.log10(n), 0.7) if n > 1 else -math.inf


def log_mean(log_w: NDArray[np.float64]) -> tuple[float, float]:
    """Returns the log-mean of weights [parts, size] and its standard error, from the spread of parts (inf for one)."""
    top = float(log_w.max())
    if top == -math.inf:
        return top, math.nan
    means = np.exp(log_w - top).mean(1)
    mean = float(means.mean())
    if len(means) < 2:
        return top + math.log(mean), math.inf
    return top + math.log(mean), float(means.std(ddof=1)) / mean / math.sqrt(len(means))


def halves(log_weights: Tensor | ArrayLike, *, groups: int = 1) -> tuple[float, float, float]:
    """Returns log Z of the first and the second half, and how many standard errors lie between them.

    Args:
        log_weights: [n]; an odd draw (or group) in the middle is left out.
        groups: number of independent blocks of equal size; 1 means that all draws are independent.

    Returns:
        Both values of log Z, and their difference over its standard error: NaN if a half has fewer than two independent
        parts, inf if just one half has no positive weight.
    """
    log_w = _vector(log_weights)
    parts = groups if groups > 1 else len(log_w)
    size, half = len(log_w) // parts, parts // 2
    if half < 2:
        return math.nan, math.nan, math.nan
    found = [log_mean(x.reshape(half, size)) for x in (log_w[: half * size], log_w[len(log_w) - half * size :])]
    (a, a_error), (b, b_error) = found
    if math.isinf(a) or math.isinf(b):
        return a, b, math.nan if a == b else math.inf
    rounding = 1e-12 * max(1.0, abs(a))
    return a, b, abs(a - b) / max(math.hypot(a_error, b_error), rounding)


def sigmas(freedom: int) -> float:
    """Returns the quantile of Student's t (`freedom` degrees of freedom) as unlikely as `SIGMAS` of a normal.

    >>> round(sigmas(10**6), 3), round(sigmas(8), 1)
    (4.0, 7.6)
    """
    return float(-stdtrit(freedom, ndtr(-SIGMAS)))


def eubo_problem(
    eubo: tuple[float, float],
    log_z: tuple[float, float],
    *,
    predicted: tuple[float, float] | None,
    ess: float,
    limit: float = SIGMAS,
) -> str | None:
    """Returns how the EUBO of exact samples contradicts weighted draws, or None; pairs are (value, standard error).

    Args:
        eubo: mean log-weight of paths that end in exact samples.
        log_z: log Z from the draws.
        predicted: Σ w̄ log w of the draws; None if their weights are not weights of single paths.
        ess: effective sample size as a fraction of the draws.
        limit: standard errors that count as a contradiction.
    """
    value, error = eubo if math.isfinite(eubo[0]) else (eubo[0], 0.0)

    def describe(what: str, other: tuple[float, float]) -> str:
        return f"EUBO {value:.4f} ± {error:.4f} is {what} {other[0]:.4f} ± {other[1]:.4f}"

    if value < log_z[0] - limit * math.hypot(error, log_z[1]) - EUBO_TOLERANCE:
        return f"{describe('below log Z', log_z)}: a density in the weights, or the exact sampler, is wrong"
    if predicted is None:
        return None
    slack = limit * math.hypot(error, predicted[1]) + EUBO_TOLERANCE - EUBO_SHARE * math.log(ess)
    if value > predicted[0] + slack:
        return f"{describe('above what the weights predict,', predicted)}: exact samples lie where no draws are"
    if value < predicted[0] - slack:
        what = describe("below what the weights predict,", predicted)
        return f"{what}: a density in the weights, or the exact sampler, is wrong"
    return None


def _vector(log_weights: Tensor | ArrayLike) -> NDArray[np.float64]:
    if isinstance(log_weights, Tensor):
        log_weights = log_weights.detach().cpu().numpy()
    found = np.asarray(log_weights, dtype=np.float64)
    if found.ndim != 1 or len(found) == 0:
        raise ValueError(f"log_weights must have the shape [n] with n ≥ 1, got {found.shape}")
    if np.isnan(found).any() or (found == np.inf).any():
        raise ValueError("log_weights hold NaN or +inf; expected finite values, or −inf for weight zero")
    return found


def _pareto_shape(x: NDArray[np.float64]) -> float:
    """Shape k of a generalised Pareto law from ascending x [M] > 0 (Zhang and Stephens)."""
    count = 30 + math.isqrt(len(x))
    quartile = x[int(len(x) / 4 + 0.5) - 1]
    # Data-dependent prior: b below 1/max x, mostly near this limit, some far below it (−b large: a heavy tail).
    b = 1 / x[-1] + (1 - np.sqrt(count / (np.arange(count) + 0.5))) / (3 * quartile)
    b = b[np.abs(b) * x[-1] > 1e-12]  # b = 0, the exponential law, gives 0/0 below; its neighbours represent it
    k = np.log1p(-np.outer(b, x)).mean(1)
    profile = len(x) * (np.log(-b / k) - k - 1)
    weight = np.exp(profile - profile.max())
    return float(np.log1p(-(weight @ b) / weight.sum() * x).mean())
