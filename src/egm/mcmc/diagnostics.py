"""Convergence diagnostics of many chains: rank-normalised split R-hat and effective sample size.

Every chain is split in halves, giving M sequences of N draws. With W the mean of their variances and B/N the variance
of their means, var⁺ = (N−1)/N·W + B/N and

    R-hat = √(var⁺/W),

taken on the normal scores of the draws' ranks, and again on those of |x − median|, whichever is larger (Vehtari,
Gelman, Simpson, Carpenter, Bürkner 2021): the first sees shifted chains, also of heavy tails, the second chains of
unequal spread.

The effective sample size of the mean is M·N/τ, τ = −1 + 2 Σ_k P_k, where P_k = ρ_{2k} + ρ_{2k+1} are pairs of the
autocorrelations ρ_t = 1 − V_t/(2 var⁺), summed while positive and made non-increasing (Geyer's initial monotone
sequence). The variogram V_t, the mean of (x_{i+t} − x_i)² over the N − t pairs of every sequence, is unbiased however
short the sequences are, which matters with thousands of chains. Its lagged products come from one FFT, power spectra
being averaged over chains before transforming back.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from scipy.stats import rankdata
from torch import Tensor

from egm.mcmc.base import SupportsEnergy
from egm.mcmc.run import Chains


def r_hat(draws: Tensor | ArrayLike) -> float:
    """Rank-normalised split R-hat of one scalar, draws of shape [steps, chains].

    One means no disagreement between chains was seen; a scalar that never changes anywhere has R-hat 1.

    >>> round(r_hat(np.random.default_rng(0).normal(size=(500, 8))), 2)
    1.0
    """
    halves = _split(draws)
    folded = np.abs(halves - np.median(halves))
    return max(_basic_r_hat(_normal_scores(halves)), _basic_r_hat(_normal_scores(folded)))


def effective_sample_size(draws: Tensor | ArrayLike) -> float:
    """Number of independent draws that would estimate the mean as well, from draws [steps, chains] of one scalar."""
    x = _split(draws)
    n, m = x.shape
    total = x.var(0).mean() + x.mean(0).var(ddof=1)  # var⁺
    if np.ptp(x) == 0:
        return float(n * m)
    x = x - x.mean()
    spectrum = np.fft.rfft(x, n=2 * n, axis=0)
    products = np.fft.irfft((spectrum.real**2 + spectrum.imag**2).mean(1), n=2 * n)[:n]
    squares = np.cumsum((x**2).mean(1))
    heads, tails = squares[::-1], squares[-1] - np.append(0.0, squares[:-1])
    variogram = (heads + tails - 2 * products) / np.arange(n, 0, -1)
    rho = 1 - variogram / (2 * total)
    pairs = rho[: n // 2 * 2].reshape(-1, 2).sum(1)
    negative = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    tau = -1 + 2 * pairs.sum()
    # Antithetic chains may beat independence, but not without bound: the estimate of τ near zero is noise.
    return float(n * m / max(tau, 1 / math.log10(n * m)))


def diagnose(target: SupportsEnergy, chains: Chains) -> dict[str, dict[str, float]]:
    """For the energy and every observable, entry by entry: mean, sd, stderr (of the mean), r_hat and ess."""
    return {name: summarise(values) for name, values in scalars(target, chains).items()}


def scalars(target: SupportsEnergy, chains: Chains) -> dict[str, NDArray[np.float64]]:
    """The energy and each observable, entry by entry (`name[i]`), float64 [steps, chains]."""
    batch = tuple(chains.energy.shape)
    found = {"energy": _array(chains.energy)}
    for name, values in target.observables(**chains.state).items():
        if tuple(values.shape) == batch:
            found.setdefault(name, _array(values))
        else:
            columns = _array(values.reshape(*batch, -1))
            found.update({f"{name}[{i}]": columns[..., i] for i in range(columns.shape[-1])})
    return found


def summarise(draws: Tensor | ArrayLike) -> dict[str, float]:
    """Mean, sd, stderr, r_hat and ess of one scalar, draws of shape [steps, chains]."""
    x = _array(draws)
    ess, sd = effective_sample_size(x), float(x.std())
    return {"mean": float(x.mean()), "sd": sd, "stderr": sd / math.sqrt(ess), "r_hat": r_hat(x), "ess": ess}


def _array(values: Tensor | ArrayLike) -> NDArray[np.float64]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def _split(draws: Tensor | ArrayLike) -> NDArray[np.float64]:
    """The two halves of every chain side by side, [steps // 2, 2·chains]; an odd number leaves the middle draw out."""
    x = _array(draws)
    if x.ndim != 2 or len(x) < 4:
        raise ValueError(f"draws must have the shape [steps, chains] with at least four steps, got {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("draws hold NaN or infinite values; diagnostics need finite ones")
    half = len(x) // 2
    return np.concatenate([x[:half], x[-half:]], 1)


def _normal_scores(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return ndtri((rankdata(x).reshape(x.shape) - 0.375) / (x.size + 0.25))


def _basic_r_hat(x: NDArray[np.float64]) -> float:
    n = len(x)
    within, between = x.var(0, ddof=1).mean(), x.mean(0).var(ddof=1)
    if (np.ptp(x, axis=0) == 0).all():
        return 1.0 if between == 0 else math.inf
    return float(np.sqrt((n - 1) / n + between / within))
