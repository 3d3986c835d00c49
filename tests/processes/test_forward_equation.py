"""Every process satisfies the Kolmogorov forward equation of its path, and is consistent in r where it must be."""

import itertools

import pytest
import torch
from torch.func import grad, jacrev, vmap

from egm.paths import VE, CondOT
from egm.processes import DiscreteJump, Flow, Jump, Superposition
from egm.spaces.variables import Real
from support.cases import (
    DISCRETE,
    GAUSSIAN,
    REALS,
    SMOOTH_PROCESSES,
    SYMBOLS,
    TIMES,
    basis,
    embed,
    gauss_hermite,
    pairs,
    random_value,
    states,
)

GAUSSIAN_PATHS = pairs(GAUSSIAN, REALS)
DISCRETE_PATHS = pairs(DISCRETE, SYMBOLS)


def double(*values):
    return [torch.tensor(value, dtype=torch.float64) for value in values]


# ---------------------------------------------------------------------- drift and diffusion


@pytest.mark.parametrize("process", SMOOTH_PROCESSES.values(), ids=SMOOTH_PROCESSES)
@pytest.mark.parametrize(("t", "r"), [(0.0, 0.7), *TIMES])
@pytest.mark.parametrize("path", GAUSSIAN_PATHS)
def test_forward_equation_of_smooth_processes(path, process, t, r):
    """∂_t log p = −div b − b·∇log p + ½ g² (Δ log p + |∇log p|²) at several points, p = p_{t|r}(· | x_r)."""
    if t == 0 and process is not Flow and not isinstance(path, VE):
        t = 1e-3  # the diffusion's g² is infinite where α_t = 0
    process, variable, x_r = process(path), path.variable, random_value(path, 0)
    time, end = double(t, r)
    frame = basis(variable)

    def log_p(z, time):
        return path.log_prob(embed(variable, z), x_r, time, end)

    def drift(z):
        return frame.T @ process.conditional(embed(variable, z), x_r, time, end).drift.reshape(-1)

    mean, s = path.alpha(time) / path.alpha(end) * x_r, path.variance(time, end).sqrt()
    noise = torch.randn(6, variable.dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z = (mean.reshape(-1) @ frame) + s * noise
    g2 = process.conditional(x_r, x_r, time, end).diffusion.reshape(())

    score = vmap(grad(log_p), (0, None))(z, time)
    laplacian = vmap(jacrev(grad(log_p)), (0, None))(z, time).diagonal(dim1=1, dim2=2).sum(-1)
    divergence = vmap(jacrev(drift))(z).diagonal(dim1=1, dim2=2).sum(-1)
    transport = -divergence - (vmap(drift)(z) * score).sum(-1)
    right = transport + 0.5 * g2 * (laplacian + score.square().sum(-1))
    left = vmap(grad(log_p, 1), (0, None))(z, time)
    scale = 1 + float(left.abs().max() + (g2 * laplacian.abs()).max())
    torch.testing.assert_close(left, right, rtol=0, atol=1e-9 * scale)


@pytest.mark.parametrize("process", SMOOTH_PROCESSES.values(), ids=SMOOTH_PROCESSES)
@pytest.mark.parametrize(("t", "r"), [pair for pair in TIMES if pair[1] < 1])
@pytest.mark.parametrize("path", GAUSSIAN_PATHS)
def test_smooth_generators_do_not_depend_on_r(path, process, t, r):
    """E over p_{r|1,t} of F_{t|r} equals F_{t|1}: the premise of the bootstrap theorem."""
    process, x_1, x_t = process(path), random_value(path, 0), random_value(path, 1)
    nodes, weights = gauss_hermite(path.variable, 6)
    mean, variance, _ = path.bridge(x_t, x_1, *double(t, r))
    x_r = mean + variance.sqrt() * nodes
    conditional = process.conditional(x_t.expand_as(x_r), x_r, *double(t, r))
    averaged = (weights.reshape(-1, *(1,) * x_t.ndim) * conditional.drift).sum(0)
    direct = process.conditional(x_t, x_1, *double(t, 1.0))
    torch.testing.assert_close(averaged, direct.drift, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(conditional.diffusion, direct.diffusion)


# ---------------------------------------------------------------------- symbols


def jumps(path, x_t, rates):
    """Total rate matrix [to, from] over all states from rates [from, *shape, n]."""
    flat = x_t.reshape(len(x_t), -1)
    matrix = torch.zeros(len(x_t), len(x_t), dtype=torch.float64)
    rates = rates.reshape(len(x_t), -1, path.variable.size)
    for source, site, symbol in itertools.product(range(len(x_t)), range(flat.shape[1]), range(path.variable.size)):
        rate = rates[source, site, symbol]
        assert rate >= 0
        if rate > 0:
            moved = flat[source].clone()
            moved[site] = symbol
            (goal,) = (flat == moved).all(-1).nonzero()[:, 0].tolist()
            assert goal != source
            matrix[goal, source] += rate
            matrix[source, source] -= rate
    return matrix


@pytest.mark.parametrize(("t", "r"), TIMES)
@pytest.mark.parametrize("path", DISCRETE_PATHS)
def test_forward_equation_of_discrete_jumps(path, t, r):
    process, x_t = DiscreteJump(path), states(path, running=True)
    h = 1e-5
    time, end, before, after = double(t, r, t - h, t + h)
    for x_r in states(path, running=r < 1):
        here = x_r.expand_as(x_t)
        p = path.log_prob(x_t, here, time, end).exp()
        slope = (path.log_prob(x_t, here, after, end).exp() - path.log_prob(x_t, here, before, end).exp()) / (2 * h)
        reachable = p > 0
        rates = process.conditional(x_t, here, time, end)
        rates = torch.where(reachable.reshape(-1, *(1,) * (rates.ndim - 1)), rates, 0.0)
        torch.testing.assert_close(jumps(path, x_t, rates) @ p, slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("t", "r"), [pair for pair in TIMES if pair[1] < 1])
@pytest.mark.parametrize("path", DISCRETE_PATHS)
def test_discrete_rates_do_not_depend_on_r(path, t, r):
    process, x_t = DiscreteJump(path), states(path, running=True)
    x_r = states(path, running=True)
    time, end, one = double(t, r, 1.0)
    for x_1, x in itertools.product(states(path, running=False), x_t):
        if path.log_prob(x, x_1, time) == -torch.inf:
            continue
        log_bridge = path.log_prob(x.expand_as(x_r), x_r, time, end) + path.log_prob(x_r, x_1.expand_as(x_r), end)
        weights = torch.softmax(log_bridge, 0)
        rates = process.conditional(x.expand_as(x_r), x_r, time, end)
        averaged = torch.einsum("k,k...->...", weights, rates)
        torch.testing.assert_close(averaged, process.conditional(x, x_1, time, one), rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------- continuous jumps


@pytest.mark.parametrize("t", [0.15, 0.5, 0.9])
@pytest.mark.parametrize("make", GAUSSIAN.values(), ids=GAUSSIAN)
@pytest.mark.parametrize("ends", [[0.7], [-1.1, 0.4]], ids=["conditional", "marginal"])
def test_forward_equation_of_the_continuous_jump(make, t, ends):
    """∂_t P(x ≤ edge) = inflow − outflow below it, for p_{t|1} and for a mixture with the posterior-averaged kernel."""
    path, (time, x_1) = make(Real(())), double(t, ends)
    means, sigma = path.alpha(time) * x_1, path.variance(time).sqrt()
    limit = float(means.abs().max() + 9 * sigma)
    jump = Jump(path, bins=1000, limit=limit)
    grid = torch.linspace(-limit, limit, 4001, dtype=torch.float64)  # four cells to a bin
    joint = path.log_prob(grid, x_1[:, None], time).exp() / len(x_1)
    density, width = joint.sum(0), grid[1] - grid[0]
    posterior = joint / density.clamp(min=1e-290)
    kernels = torch.stack([jump.conditional(grid, x.expand_as(grid), time).kernel for x in x_1])  # type: ignore[arg-type]
    kernel = torch.einsum("kx,kxb->xb", posterior, kernels)
    inflow = (kernel * density[:, None]).sum(0).cumsum(0) * width
    outflow = torch.cumulative_trapezoid(kernel.sum(-1) * density, grid)[3::4]

    def below(time):
        cdf = torch.special.ndtr((jump.edges(grid)[1:] - path.alpha(time) * x_1[:, None]) / path.variance(time).sqrt())
        return cdf.mean(0)

    h = 1e-6
    change = (below(time + h) - below(time - h)) / (2 * h)
    torch.testing.assert_close(inflow - outflow, change, rtol=0, atol=3e-3 * float(outflow[-1]))
    assert float(inflow[-1]) == pytest.approx(float(outflow[-1]), rel=1e-4)  # every jump lands somewhere


def test_jump_kernel_of_several_coordinates_is_coordinate_wise():
    path = CondOT(Real(2))
    jump, alone = Jump(path, bins=16), Jump(CondOT(Real(())), bins=16)
    x_t, x_1 = random_value(path, 0), random_value(path, 1)
    kernel = jump.kernel(x_t, x_1, 0.4)
    assert kernel.shape == (2, 16)
    for i in range(2):
        torch.testing.assert_close(kernel[i], alone.kernel(x_t[i], x_1[i], 0.4))


@pytest.mark.parametrize("r", [0.5, torch.tensor(1.0), torch.tensor([0.4, 1.0])])
def test_jump_refuses_to_be_bootstrapped(r):
    path = CondOT(Real(1))
    x = torch.zeros(2, 1)
    for process in (Jump(path), Superposition([(0.5, Flow(path)), (0.5, Jump(path))])):
        with pytest.raises(ValueError, match="no consistent conditional generator for r < 1"):
            process.conditional(x, x, 0.2, r)


def test_no_consistent_jump_exists_for_the_natural_candidate():
    """The rate [∂_t log p_{t|r}]_− averaged over the bridge is not [∂_t log p_{t|1}]_−."""
    path = CondOT(Real(()))
    t, r, one = double(0.4, 0.6, 1.0)
    x_t, x_1 = double(0.9, 0.5)

    def rate(x_r, end):
        derivative = grad(lambda time: path.log_prob(x_t, x_r, time, end))(t)
        return (-derivative).clamp(min=0)

    nodes, weights = gauss_hermite(path.variable, 80)
    mean, variance, _ = path.bridge(x_t, x_1, t, r)
    averaged = (weights * vmap(lambda x: rate(x, r))(mean + variance.sqrt() * nodes)).sum()
    assert abs(float(averaged - rate(x_1, one))) > 0.1
