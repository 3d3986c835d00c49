"""The Euler step with its jumps, binned jump kernels at their limits, and the divergence at zero rates."""

import math

import pytest
import torch
from scipy import stats as scipy_stats
from torch.func import grad, vmap

from egm.paths import CondOT
from egm.processes import Diffusion, Flow, Jump, RealGenerator, Superposition
from egm.processes.base import euler_step, sample_table
from egm.processes.jump import generalised_kl
from egm.spaces.variables import Real
from support.cases import GAUSSIAN
from support.stats import FAILURE_RATE, assert_counts, assert_mean, assert_variance

N = 40_000


# ---------------------------------------------------------------------- one step


def test_euler_step_drifts_and_diffuses():
    drift, g2 = torch.tensor([3.0, -1.0], dtype=torch.float64), torch.tensor([2.0, 0.5], dtype=torch.float64)
    x_t = torch.tensor([1.0, 5.0], dtype=torch.float64)
    h = torch.tensor([[0.25], [0.04]], dtype=torch.float64)  # one step length for each element of a batch
    generator = torch.Generator().manual_seed(0)
    x = euler_step(RealGenerator(drift, g2), x_t.expand(N, 2, 2), h, Real(2), generator=generator)
    assert_mean(x, x_t + h * drift)
    assert_variance(x, h * g2)


def test_euler_step_jumps_into_bins():
    """P(jump) = 1 − e^{−hλ} a coordinate, bins in proportion to the kernel, uniform inside, coordinates independent."""
    edges = torch.tensor([-1.0, 0.0, 2.0, 5.0], dtype=torch.float64)
    kernel = torch.tensor([[0.6, 1.5, 0.9], [0.5, 0.1, 0.0]], dtype=torch.float64)  # λ = 3 and 0.6
    still, h, away = torch.zeros(2, dtype=torch.float64), 0.5, 100.0
    x_t = torch.full((N, 2), away, dtype=torch.float64)
    parameters = RealGenerator(still, still, kernel.expand(N, 2, 3), edges)
    x = euler_step(parameters, x_t, h, Real(2), generator=torch.Generator().manual_seed(0))

    stayed = x == away
    assert bool((stayed | ((x >= edges[0]) & (x < edges[-1]))).all())
    bins = torch.where(stayed, 3, torch.bucketize(x, edges, right=True) - 1)
    rate = kernel.sum(-1, keepdim=True)
    jump = -torch.expm1(-h * rate)
    law = torch.cat([jump * kernel / rate, 1 - jump], -1)  # three bins, or no jump
    joint = law[0][:, None] * law[1]
    assert_counts(torch.bincount(4 * bins[:, 0] + bins[:, 1], minlength=16), joint.flatten())

    inside = (x - edges[bins.clamp(max=2)]) / edges.diff()[bins.clamp(max=2)]
    for i, b in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        p = scipy_stats.kstest(inside[bins[:, i] == b, i].numpy(), "uniform").pvalue
        assert p >= FAILURE_RATE, f"coordinate {i}, bin {b}: p = {p:.2e}"
    both = inside[~stayed.any(-1)] - 0.5
    assert_mean(both.prod(-1), 0.0, "coordinates land independently")


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-24])
@pytest.mark.parametrize("table", [[0.0, 0.0, 1.0, 2.0], [0.0, 3.0, 0.0], [1.0, 0.1, 0.0, 0.0], [0.7, 0.2, 0.1, 0.0]])
def test_sample_table_at_the_ends_of_the_unit_interval(monkeypatch, u, table):
    """The smallest and the largest float32 uniform draw the first and the last entry of positive weight."""
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, **_: torch.full(shape[0], u, dtype=dtype))
    positive = [i for i, weight in enumerate(table) if weight > 0]
    drawn = sample_table(torch.tensor(table, dtype=torch.float32).expand(3, -1))
    assert drawn.tolist() == [positive[0 if u == 0 else -1]] * 3


def test_sample_table_never_draws_weight_zero():
    table = torch.tensor([0.0, 2.0, 0.0, 1.0, 0.0])
    drawn = sample_table(table.expand(30_000, 5), generator=torch.Generator().manual_seed(0))
    assert_counts(torch.bincount(drawn, minlength=5), table / 3)


# ---------------------------------------------------------------------- kernels


def test_superposition_weighs_the_kernel_as_well():
    path = CondOT(Real(2))
    parts = [Flow(path), Diffusion(path), Jump(path, bins=8)]
    generator = torch.Generator().manual_seed(0)
    x_t, x_1 = torch.randn(2, 5, 2, generator=generator, dtype=torch.float64)
    mixed = Superposition(list(zip((0.2, 0.5, 0.3), parts, strict=True))).conditional(x_t, x_1, 0.4)
    flow, diffusion, jump = (process.conditional(x_t, x_1, 0.4) for process in parts)
    torch.testing.assert_close(mixed.kernel, 0.3 * jump.kernel)
    torch.testing.assert_close(mixed.edges, jump.edges)
    torch.testing.assert_close(mixed.drift, 0.2 * flow.drift + 0.5 * diffusion.drift)
    torch.testing.assert_close(mixed.diffusion, 0.5 * diffusion.diffusion)


@pytest.mark.parametrize("limit", [0.05, 0.5, None])
@pytest.mark.parametrize("make", GAUSSIAN.values(), ids=GAUSSIAN)
def test_bins_lose_no_mass_beyond_their_limit(make, limit):
    """Σ_bins k = λ = [∂_t log p]_− for any bins: what lies beyond counts in the outermost ones."""
    path = make(Real(()))
    jump = Jump(path, bins=4, limit=limit)
    t, x_1 = torch.tensor([0.3, 0.8], dtype=torch.float64)
    x_t = path.alpha(t) * x_1 + path.variance(t).sqrt() * torch.linspace(-3, 3, 13, dtype=torch.float64)
    slope = vmap(lambda x: grad(lambda time: path.log_prob(x, x_1, time))(t))(x_t)
    torch.testing.assert_close(jump.kernel(x_t, x_1.expand_as(x_t), t).sum(-1), (-slope).clamp(min=0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", GAUSSIAN.values(), ids=GAUSSIAN)
def test_jump_kernel_at_the_start(make, dtype):
    """At t = 0 the kernel is non-negative and the limit t → 0, also where σ̇ = 0 (VP) and one root is infinite."""
    path = make(Real(()))
    x_t, x_1 = torch.meshgrid(
        torch.linspace(-3, 3, 7, dtype=dtype), torch.linspace(-1.5, 1.5, 5, dtype=dtype), indexing="ij"
    )
    jump = Jump(path, bins=16)
    kernel = jump.kernel(x_t, x_1, 0.0)
    assert bool((kernel >= 0).all())
    limit = jump.kernel(x_t.double(), x_1.double(), 1e-6)
    torch.testing.assert_close(kernel.double(), limit, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------- divergence


def test_generalised_kl_where_rates_vanish():
    a = torch.tensor([0.0, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.0, 0.4, 0.7], dtype=torch.float64, requires_grad=True)
    expected = 0 + 0.4 + (0.5 * math.log(0.5 / 0.7) - 0.5 + 0.7)
    value = generalised_kl(a, b, 1)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    slope_a, slope_b = torch.autograd.grad(value, (a, b))
    assert bool(torch.isfinite(slope_a).all())
    assert slope_b.tolist() == pytest.approx([1.0, 1.0, 1 - 0.5 / 0.7])
