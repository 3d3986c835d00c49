"""The denoiser's error: at first that of the reference law, then the measured one, on every path and at every time."""

import math

import pytest
import torch

from egm.paths import VE, VP, CondOT, ProductPath
from egm.processes import Diffusion
from egm.simulation.clock import time_grid
from egm.simulation.course import Course
from egm.simulation.denoiser_error import BINS, DECAY, SMALLEST, DenoiserError
from egm.simulation.simulate import simulate
from egm.spaces import Categorical, Real, Space
from support.stats import z_limit

DOUBLE = torch.float64
PATHS = {"condot": CondOT, "ve": VE, "vp": VP}
#: the time at which log α²/σ² is λ
TIME_OF = {
    "condot": lambda snr: torch.sigmoid(snr / 2),
    "ve": lambda snr: 1 - torch.log1p(1e4 * torch.exp(-snr)) / (2 * math.log(200)),
    "vp": lambda snr: 2 / math.pi * torch.atan(torch.exp(snr / 2)),
}
TIMES = torch.tensor([0.0, 1e-6, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 0.998, 1 - 1e-6], dtype=DOUBLE)


def path_on(variable, kind="condot"):
    return ProductPath(Space(x=variable), {"x": PATHS[kind](variable)})


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def schedule(path, t):
    return path["x"].alpha(t), path["x"].variance(t)


def posterior(path, t, s2):
    """Variance of x_1 ~ N(m, s²) given x_t, from 1/(1/s² + α²/σ²)."""
    alpha, sigma2 = schedule(path, t)
    return s2 * sigma2 / (alpha.square() * s2 + sigma2)


def measure(path, error, kind, *, mean, s2, updates, n=2000, noise=0.0, seed=0):
    """Feed `error` with end points of N(m, s²) and their exact denoiser, at log-SNRs that visit all bins alike."""
    generator, variable = seeded(seed), path.space["x"]
    sites = (1,) * len(variable.latent_shape)
    for _ in range(updates):
        snr = -11 + 26 * torch.rand(n, generator=generator, dtype=DOUBLE)
        t = TIME_OF[kind](snr).clamp(0, 1 - 1e-6)
        x_1 = mean + s2**0.5 * variable.noise((n,), generator=generator, dtype=DOUBLE)
        x_t = path.sample({"x": x_1}, t, generator=generator)["x"]
        alpha, sigma2 = (value.reshape(n, *sites) for value in schedule(path, t))
        gain = alpha * s2 / (alpha.square() * s2 + sigma2)
        denoised = mean + gain * (x_t - alpha * mean) + noise
        error.update({"x": x_1}, {"x": denoised}, t)


# ---------------------------------------------------------------------- what is known before and after


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("kind", PATHS)
def test_at_first_it_is_the_reference_law_s(kind, dtype):
    path = path_on(Real((2, 3)), kind)
    t = torch.cat([TIMES.to(dtype), torch.tensor([1 - torch.finfo(dtype).eps], dtype=dtype)])
    found = DenoiserError(path)("x", t)
    assert found.shape == (len(t), 2, 3)
    assert found.dtype == dtype
    assert bool((found > 0).all())
    expected = posterior(path, t, 1.0)[:, None, None].expand(-1, 2, 3)
    torch.testing.assert_close(found, expected)
    assert float(found[0, 0, 0]) == pytest.approx({"condot": 1, "ve": 4 / 5, "vp": 1}[kind], abs=1e-4)


@pytest.mark.parametrize("kind", PATHS)
def test_it_becomes_the_posterior_variance_of_every_coordinate(kind):
    path, s = path_on(Real(3), kind), torch.tensor([0.3, 1.0, 2.0], dtype=DOUBLE)
    error = DenoiserError(path)
    measure(path, error, kind, mean=torch.tensor([0.5, -1.0, 2.0], dtype=DOUBLE), s2=s.square(), updates=300)
    found, expected = error("x", TIMES), posterior(path, TIMES[:, None], s.square())
    # A bin's mean is over batches with weights DECAY^k, and squares of Gaussians have the relative variance 2.
    _, counts = error.buffers()
    visited = counts[counts > 1]
    assert len(visited) == BINS
    worst = math.sqrt(2 / ((1 + DECAY) * float(visited.min())))
    assert worst < 0.03
    off = (found / expected - 1).abs()
    assert float(off.max()) < 0.01 + z_limit(found.numel()) * worst  # .01 for the width of the bins
    assert float(off.mean()) < 0.015
    # The reference law's error would not do, nor the same for all coordinates.
    assert float((posterior(path, TIMES, 1.0)[:, None] / expected - 1).abs().max()) > 0.5


@pytest.mark.parametrize(
    ("variable", "shape"),
    [(Real((3, 2), centered=True), (1, 1)), (Real(()), ()), (Real(3, constraint="simplex"), (2,))],
)
def test_variables_of_other_kinds(variable, shape):
    """Centred variables have one number for all degrees of freedom; predictions off their subspace are projected."""
    path = path_on(variable)
    error, s2 = DenoiserError(path), torch.tensor(0.16, dtype=DOUBLE)
    measure(path, error, "condot", mean=torch.tensor(0.0), s2=s2, updates=150, noise=3.0 if variable.centered else 0.0)
    found = error("x", TIMES)
    assert found.shape == (len(TIMES), *shape)
    expected = posterior(path, TIMES, s2).reshape(-1, *(1,) * len(shape)).expand_as(found)
    torch.testing.assert_close(found, expected, rtol=0.08, atol=0)


def test_only_reals_that_are_denoised_count():
    space = Space(x=Real(1), y=Real(2), s=Categorical(2))
    error, n = DenoiserError(ProductPath(space)), 50
    t = torch.full((n,), 0.5)
    x_1 = {"x": torch.ones(n, 1), "y": torch.ones(n, 2), "s": torch.zeros(n, dtype=torch.int64)}
    for _ in range(1500):
        error.update(x_1, {"x": torch.zeros(n, 1)}, torch.linspace(0.4, 0.6, n))
    assert float(error("x", t[:1])) == pytest.approx(1.0, rel=0.05)
    torch.testing.assert_close(error("y", t[:1]), torch.full((1, 2), 0.5))


# ---------------------------------------------------------------------- bookkeeping


def test_it_follows_a_denoiser_that_changes():
    """Errors of 4 units, then of a quarter: half-way (with weights DECAY^k) after 69 updates, there after 1000."""
    path = path_on(Real(1))
    error, n = DenoiserError(path), 16
    t, zero = torch.full((n,), 0.3), torch.zeros(n, 1)
    unit = posterior(path, t[:1], 1.0)

    def ratio_after(updates, size):
        for _ in range(updates):
            error.update({"x": (size * unit).sqrt() * torch.ones(n, 1)}, {"x": zero}, t)
        # t lies between two bins, and only the nearest was visited
        squares, counts = error.buffers()
        (visited,) = (counts != 1).nonzero().flatten().tolist()
        return float(squares[visited, 0] / counts[visited])

    assert ratio_after(1500, 4.0) == pytest.approx(4.0, rel=1e-4)
    assert ratio_after(69, 0.25) == pytest.approx(0.25 + 3.75 * 0.99**69, rel=1e-3)
    assert ratio_after(1000, 0.25) == pytest.approx(0.25, rel=1e-3)


@pytest.mark.slow
def test_bins_that_are_not_visited_keep_their_value():
    path = path_on(Real(1))
    error, generator, n = DenoiserError(path), seeded(), 4
    measure(path, error, "condot", mean=0.0, s2=torch.tensor(0.25, dtype=DOUBLE), updates=50)
    before = [buffer.clone() for buffer in error.buffers()]
    x_1, t = {"x": torch.randn(n, 1, generator=generator)}, 0.45 + 0.1 * torch.rand(n, generator=generator)
    denoised = {"x": torch.zeros(n, 1)}
    for _ in range(20_000):
        error.update(x_1, denoised, t)
    squares, counts = error.buffers()
    changed = counts != before[1]
    assert 1 <= int(changed.sum()) <= 4
    assert torch.equal(squares[~changed], before[0][~changed])
    assert bool(torch.isfinite(squares).all() & torch.isfinite(counts).all() & (counts > 0).all())
    assert len(counts) == BINS
    early, late = error("x", torch.tensor([0.2, 0.8]))[:, 0].tolist()
    expected = posterior(path, torch.tensor([0.2, 0.8]), 0.25).tolist()
    assert [early, late] == pytest.approx(expected, rel=0.2)


def test_a_denoiser_without_error_still_has_a_density():
    path = path_on(Real(1))
    error, x = DenoiserError(path), torch.ones(64, 1)
    for _ in range(3000):
        error.update({"x": x}, {"x": x}, torch.linspace(0, 0.999, 64))
    found = error("x", TIMES)
    assert bool((found >= 0.99 * SMALLEST * posterior(path, TIMES, 1.0)[:, None]).all())
    assert float(found[5]) < 1e-5


def test_it_is_saved_and_loaded():
    path = path_on(Real(2))
    error, again = DenoiserError(path), DenoiserError(path)
    measure(path, error, "condot", mean=0.3, s2=torch.tensor([0.04, 2.0], dtype=DOUBLE), updates=20)
    assert not torch.equal(error("x", TIMES), again("x", TIMES))
    again.load_state_dict({name: x.clone() for name, x in error.state_dict().items()})
    assert torch.equal(error("x", TIMES), again("x", TIMES))
    for either in (error, again):
        measure(path, either, "condot", mean=0.3, s2=torch.tensor([0.04, 2.0], dtype=DOUBLE), updates=3, seed=1)
    assert torch.equal(error("x", TIMES), again("x", TIMES))


# ---------------------------------------------------------------------- what it is for


@pytest.mark.parametrize("kind", ["condot", "vp"])
def test_bridges_widened_by_it_have_even_weights(kind):
    """ESS of 50 steps with the exact denoiser: above .999; the reference law's error gives .65."""
    path, n = path_on(Real(3), kind), 4000
    mean, s = torch.tensor([0.4, -0.3, 0.0], dtype=DOUBLE), torch.tensor([0.1, 0.3, 2.0], dtype=DOUBLE)
    error = DenoiserError(path)
    measure(path, error, kind, mean=mean, s2=s.square(), updates=200)

    def predict(x, t):
        alpha, sigma2 = (value[:, None] for value in schedule(path, t))
        return {"x": mean + alpha * s**2 / (alpha**2 * s**2 + sigma2) * (x["x"] - alpha * mean)}

    def ess(error_of):
        drawn = simulate(
            predict, path, {"x": Diffusion(path["x"])}, n, Course(time_grid(50), error=error_of),  # type: ignore[arg-type]
            weigh=True, generator=seeded(1), dtype=DOUBLE,
        )  # fmt: skip
        assert drawn.log_ratio is not None
        log_w = drawn.log_ratio - ((drawn.state["x"] - mean) / s).square().sum(-1) / 2
        w = torch.softmax(log_w, 0)
        return float(1 / (n * w.square().sum()))

    found = [ess(error), ess(DenoiserError(path)), ess(lambda name, t: 0.2 * error(name, t))]
    assert found[0] >= 0.99
    assert max(found[1:]) < 0.75  # of the reference law, and of a narrower step
