"""Convergence diagnostics of many chains: rank-normalised split R-hat and effective sample size.

Every chain is split in halves, giving M sequences of N draws. With W the mean of their variances and B/N the variance
of their means, var⁺ = (N−1)/N·W + B/N and

    R-hat = √(var⁺/W),

computed from the normal scores of the ranks of x and of |x − median|; the larger value is reported (Vehtari, Gelman,
Simpson, Carpenter, Bürkner 2021). The first detects shifted chains, also with heavy tails; the second detects chains of
unequal spread.

The effective sample size of the mean is M·N/τ, τ = −1 + 2 Σ_k P_k, where P_k = ρ_{2k} + ρ_{2k+1} are pairs of the
autocorrelations ρ_t = 1 − V_t/(2 var⁺), summed while positive and made non-increasing (Geyer's initial monotone
sequence). The variogram V_t, the mean of (x_{i+t} − x_i)² over the N − t pairs of every sequence, is unbiased for
sequences of any length, which matters with thousands of chains. Its lagged products come from one FFT: power spectra
are averaged over chains before the inverse transform.
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
    """Returns the rank-normalised split R-hat of one scalar, from draws of shape [steps, chains].

    A value of one means that no disagreement between chains was found; a constant scalar has R-hat 1.

    >>> round(r_hat(np.random.default_rng(0).normal(size=(500, 8))), 2)
    1.0
    """
    halves = _split(draws)
    folded = np.abs(halves - np.median(halves))
    return max(_basic_r_hat(_normal_scores(halves)), _basic_r_hat(_normal_scores(folded)))


def effective_sample_size(draws: Tensor | ArrayLike) -> float:
    """Returns the number of independent draws that estimate the mean as well as draws [steps, chains] of a scalar."""
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
    # Antithetic chains may beat independent draws, but the ESS is capped: an estimate of τ near zero is noise.
    return float(n * m / max(tau, 1 / math.log10(n * m)))


def diagnose(target: SupportsEnergy, chains: Chains) -> dict[str, dict[str, float]]:
    """Returns mean, sd, stderr (of the mean), r_hat and ess of the energy and of every entry of the observables."""
    return {name: summarise(values) for name, values in scalars(target, chains).items()}


def scalars(target: SupportsEnergy, chains: Chains) -> dict[str, NDArray[np.float64]]:
    """Returns the energy and every entry of the observables (`name[i]`), float64 [steps, chains]."""
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
    """Returns mean, sd, stderr, r_hat and ess of one scalar, from draws of shape [steps, chains]."""
    x = _array(draws)
    ess, sd = effective_sample_size(x), float(x.std())
    return {"mean": float(x.mean()), "sd": sd, "stderr": sd / math.sqrt(ess), "r_hat": r_hat(x), "ess": ess}


def _array(values: Tensor | ArrayLike) -> NDArray[np.float64]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def _split(draws: Tensor | ArrayLike) -> NDArray[np.float64]:
    """Returns the two halves of every chain as columns, [steps // 2, 2·chains]; leaves out an odd middle draw."""
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
