"""Bridges towards a known x_1: they keep to the path, compose, and over short times move like the generator."""

import pytest
import torch

from support.cases import BRIDGING_PROCESSES, GAUSSIAN, REALS, pairs, random_value

PATHS = pytest.mark.parametrize("path", pairs(GAUSSIAN, REALS))
PROCESSES = pytest.mark.parametrize("process", BRIDGING_PROCESSES.values(), ids=BRIDGING_PROCESSES)


def double(*values):
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def bridge(process, t, r, x_1, x_t):
    """M of the mean M x_t + B x_1, V and B as numbers, after checking that the mean is that."""
    mean, variance, b = process.bridge(x_t, x_1, t, r)
    m = process.bridge(x_t + x_1, x_1, t, r)[0] - mean  # M x_1
    m = (m.flatten() @ x_1.flatten()) / x_1.square().sum()
    torch.testing.assert_close(mean, m * x_t + b * x_1)
    return m, variance.reshape(()), b.reshape(())


@pytest.mark.parametrize(("t", "r"), [(0.02, 0.9), (0.15, 1.0), (0.3, 0.55), (0.6, 0.61)])
@PROCESSES
@PATHS
def test_bridges_keep_to_the_path(path, process, t, r):
    """x_t ~ N(α_t x_1, σ_t²) gives x_r ~ N(α_r x_1, σ_r²)."""
    t, r = double(t, r)
    m, variance, b = bridge(process(path), t, r, random_value(path, 0), random_value(path, 1))
    torch.testing.assert_close(m * path.alpha(t) + b, path.alpha(r), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(m**2 * path.variance(t) + variance, path.variance(r), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("t", "r", "q"), [(0.2, 0.5, 0.9), (0.1, 0.4, 1.0), (0.45, 0.7, 0.8)])
@PROCESSES
@PATHS
def test_bridges_compose(path, process, t, r, q):
    """From t to r and on to q is the bridge from t to q."""
    (t, r, q), process, ends = double(t, r, q), process(path), (random_value(path, 0), random_value(path, 1))
    (m_1, v_1, b_1), (m_2, v_2, b_2) = bridge(process, t, r, *ends), bridge(process, r, q, *ends)
    composed = torch.stack([m_2 * m_1, m_2**2 * v_1 + v_2, m_2 * b_1 + b_2])
    torch.testing.assert_close(composed, torch.stack(bridge(process, t, q, *ends)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("t", [0.05, 0.4, 0.8])
@PROCESSES
@PATHS
def test_bridges_over_short_times_move_like_the_generator(path, process, t):
    """(E[x_{t+h}] − x_t)/h → drift and Var/h → g²: the generator fixes g, not only p_t."""
    h, (t,), process = 1e-7, double(t), process(path)
    x_t, x_1 = random_value(path, 0), random_value(path, 1)
    mean, variance, _ = process.bridge(x_t, x_1, t, t + h)
    generator = process.conditional(x_t, x_1, t)
    torch.testing.assert_close((mean - x_t) / h, generator.drift, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close((variance / h).flatten(), generator.diffusion.flatten(), rtol=1e-4, atol=0)
