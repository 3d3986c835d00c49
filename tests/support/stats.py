"""Statistical assertions with one declared failure rate.

Every assertion below rejects a correct implementation with probability at most `FAILURE_RATE` (four standard errors of
a normal, two-sided); seeds are fixed, so a passing test stays passing.
"""

import numpy as np
from scipy import stats

FAILURE_RATE = 2 * stats.norm.sf(4.0)


def z_limit(comparisons: int = 1) -> float:
    """Largest |z| among `comparisons` values that is not a failure (Bonferroni)."""
    return float(stats.norm.isf(FAILURE_RATE / 2 / comparisons))


def assert_mean(samples, expected, label: str = "mean") -> None:
    """Independent samples [n, ...] have the expected mean (broadcast over trailing axes)."""
    samples = np.asarray(samples, dtype=np.float64)
    assert len(samples) >= 100, "too few samples for a normal approximation"
    stderr = samples.std(0, ddof=1) / np.sqrt(len(samples))
    z = (samples.mean(0) - np.asarray(expected)) / np.maximum(stderr, 1e-300)
    worst = np.abs(z).max()
    assert worst <= z_limit(z.size), f"{label}: {worst:.2f} standard errors off; got {samples.mean(0)}, want {expected}"


def assert_variance(samples, expected, label: str = "variance") -> None:
    """Independent samples [n, ...] have the expected variance."""
    samples = np.asarray(samples, dtype=np.float64)
    assert_mean((samples - samples.mean(0)) ** 2 * len(samples) / (len(samples) - 1), expected, label)


def assert_same_mean(a, b, label: str = "mean") -> None:
    """Two independent sets of independent samples have the same mean."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    stderr = np.sqrt(a.var(0, ddof=1) / len(a) + b.var(0, ddof=1) / len(b))
    z = (a.mean(0) - b.mean(0)) / np.maximum(stderr, 1e-300)
    assert np.abs(z).max() <= z_limit(z.size), f"{label}: {np.abs(z).max():.2f} standard errors apart"


def assert_same_distribution(a, b, label: str = "distribution") -> None:
    """Two independent sets of scalar samples agree (Kolmogorov–Smirnov; conservative where values tie)."""
    distance, p = stats.ks_2samp(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    assert p >= FAILURE_RATE, f"{label}: KS distance {distance:.4f}, p = {p:.2e}"


def assert_counts(counts, probabilities, label: str = "counts") -> None:
    """Counts of independent draws agree with probabilities (χ²; cells expecting fewer than five are pooled)."""
    counts, probabilities = np.asarray(counts, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    expected = probabilities * counts.sum()
    assert np.all(counts[expected == 0] == 0), f"{label}: draws where the probability is zero"
    rare = expected < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        keep = expected > 0
        counts, expected = counts[keep], expected[keep]
    if len(counts) == 1:
        return  # a certain outcome; draws of probability zero were excluded above
    _, p = stats.chisquare(counts, expected * counts.sum() / expected.sum())
    assert p >= FAILURE_RATE, f"{label}: chi-square p = {p:.2e}"
