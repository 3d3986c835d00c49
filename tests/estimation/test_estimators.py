"""The estimator against exact marginal generators: convergence, independence of r, energies, weights and limits."""

import itertools
import math

import numpy as np
import pytest
import torch

from egm.estimation.estimators import chunk_size, estimate
from egm.paths import VE, VP, CondOT, Masked, ProductPath, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow, Jump
from egm.spaces import Real, Space
from egm.targets import Ising
from support.marginals import LabelledGaussians, TinyIsing
from support.stats import assert_mean

ORACLES = {
    "ising-masked": TinyIsing(Masked),
    "ising-uniform": TinyIsing(Uniform),
    "gaussian-condot": LabelledGaussians(CondOT, masses=(1.0,), means=(0.6,)),
    "gaussian-ve": LabelledGaussians(lambda v: VE(v, sigma_min=0.2), masses=(1.0,), means=(0.6,)),  # type: ignore[arg-type]
    "gaussian-vp": LabelledGaussians(VP, masses=(1.0,), means=(0.6,)),
    "mixed-masked": LabelledGaussians(CondOT, Masked),
    "mixed-uniform": LabelledGaussians(VP, Uniform),
}
T = torch.tensor(0.5, dtype=torch.float64)


def repeat(oracle, r, count, n, seed=0, **options):
    """n independent estimates at the oracle's state, and the exact prediction there."""
    start = oracle.start()
    x_t = {name: x.expand(n, *x.shape) for name, x in start.items()}
    generator = torch.Generator().manual_seed(seed)
    t = T.expand(n)
    r = r if isinstance(r, float) else torch.tensor(r, dtype=torch.float64)
    got = estimate(
        oracle.energy, oracle.path, oracle.processes, x_t, t, r=r, count=count, generator=generator, **options
    )
    return got, oracle.prediction(start, T)


def error(got, exact):
    """Root-mean-square error over repetitions and entries of all variables together."""
    squares = [(got.prediction[name] - exact[name]).square().mean() for name in exact]
    return math.sqrt(float(torch.stack(squares).mean()))


@pytest.mark.parametrize("proposal", ["flat", "reference"])
@pytest.mark.parametrize("r", [1.0, 0.65], ids=["egm", "bootstrapped"])
@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_error_falls_with_the_square_root_of_k(oracle, r, proposal):
    counts = [64, 256, 1024, 4096]
    errors = [error(*repeat(oracle, r, count, 300, seed=count, proposal=proposal)) for count in counts]
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)
    assert errors[-1] < 0.2


@pytest.mark.parametrize("proposal", ["flat", "reference"])
@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_estimates_agree_for_every_r(oracle, proposal):
    """Theorem 1: with the exact E_r the mean over repetitions is the exact generator for every r."""
    for r in (0.55, 0.7, 0.9, 1.0):
        got, exact = repeat(oracle, r, 2048, 225, proposal=proposal)
        for name, value in exact.items():
            spread = got.prediction[name].std(0) / 15
            bias = got.prediction[name].var(0)  # self-normalisation is biased by about the variance of one estimate
            off = (got.prediction[name].mean(0) - value).abs()
            assert bool((off <= 5 * spread + 5 * bias + 1e-9).all()), (r, name, off, spread)


def with_gradient(oracle):
    """E_r and its gradient with respect to x."""

    def energy(state, r):
        with torch.enable_grad():
            x = state["x"].detach().requires_grad_()
            value = oracle.energy({**state, "x": x}, r)
            (gradient,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), {"x": gradient}

    return energy


WITH_SCORES = {name: oracle for name, oracle in ORACLES.items() if not name.startswith("ising")}


@pytest.mark.parametrize("proposal", ["flat", "reference"])
@pytest.mark.parametrize("oracle", WITH_SCORES.values(), ids=WITH_SCORES)
def test_scores_give_the_same_denoiser(oracle, proposal):
    """The target score identity, at every r; symbols are estimated as before."""
    start = oracle.start()
    x_t = {name: x.expand(225, *x.shape) for name, x in start.items()}
    for r in (0.55, 0.9, 1.0):
        got = estimate(
            oracle.energy, oracle.path, oracle.processes, x_t, T.expand(225), proposal=proposal,
            scores=with_gradient(oracle),
            r=r if r == 1.0 else torch.tensor(r, dtype=torch.float64), count=2048,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        for name, value in oracle.prediction(start, T).items():
            spread, bias = got.prediction[name].std(0) / 15, got.prediction[name].var(0)
            off = (got.prediction[name].mean(0) - value).abs()
            assert bool((off <= 5 * spread + 5 * bias + 1e-9).all()), (r, name, off, spread)
            assert bool((5 * spread + 5 * bias < 0.1).all())


@pytest.mark.parametrize("proposal", ["flat", "reference"])
@pytest.mark.parametrize("oracle", WITH_SCORES.values(), ids=WITH_SCORES)
def test_centred_estimates_have_the_same_limit_and_less_variance_over_short_steps(oracle, proposal):
    """A real variable's variance falls by a factor of the order of 1 − ESS; symbols and energies do not change."""
    for r in (0.52, 0.9, 1.0):
        both = (repeat(oracle, r, 512, 400, proposal=proposal, centred=centred) for centred in (False, True))
        (plain, exact), (got, _) = both
        value = got.prediction["x"]
        spread, bias = value.std(0) / 20, value.var(0)
        assert bool(((value.mean(0) - exact["x"]).abs() <= 5 * spread + 5 * bias + 1e-9).all())
        torch.testing.assert_close(got.energy, plain.energy, rtol=0, atol=0)
        for name in exact.keys() - {"x"}:
            torch.testing.assert_close(got.prediction[name], plain.prediction[name], rtol=0, atol=0)
        if r == 0.52:
            ratio = float(value.var(0) / plain.prediction["x"].var(0))
            assert ratio < 4 * (1 - float(plain.ess.mean())) < 1


def test_where_weights_are_uneven_centring_costs_variance():
    both = (repeat(ORACLES["gaussian-condot"], 1.0, 512, 400, centred=centred) for centred in (False, True))
    plain, centred = (got.prediction["x"].var(0) for got, _ in both)
    assert centred > 2 * plain


def test_with_equal_weights_a_centred_estimate_is_exact():
    """Draws of the reference law itself: every proposal weighs the same, and nothing of their noise is left."""
    path = ProductPath(Space(x=Real(3)), {"x": CondOT(Real(3))})
    x_t, t = {"x": torch.randn(5, 3, dtype=torch.float64)}, torch.full((5,), 0.4, dtype=torch.float64)
    got = estimate(
        lambda x, r: -path.prior_log_prob(x, r), path, {"x": Flow(path["x"])}, x_t, t, r=t + 0.1, count=300,  # type: ignore[arg-type]
        proposal="reference", centred=True, generator=torch.Generator().manual_seed(0), memory=200_000,
    )  # fmt: skip
    torch.testing.assert_close(got.ess, torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(got.prediction["x"], x_t["x"] * 0.4 / (0.4**2 + 0.6**2))


def test_scores_are_better_at_late_times_and_end_points_at_early_ones():
    oracle, errors = LabelledGaussians(CondOT, masses=(1.0,), means=(0.6,)), {}
    for t in (0.1, 0.95):
        x_t = {"x": torch.full((400,), 0.6 * t, dtype=torch.float64)}
        exact = oracle.prediction({"x": x_t["x"][0]}, torch.tensor(t, dtype=torch.float64))["x"]
        for scores in (False, True):
            got = estimate(
                oracle.energy, oracle.path, oracle.processes, x_t, torch.full((400,), t, dtype=torch.float64),  # type: ignore[arg-type]
                count=64, scores=with_gradient(oracle) if scores else None, proposal="reference",
                generator=torch.Generator().manual_seed(1),
            )  # fmt: skip
            errors[t, scores] = float((got.prediction["x"] - exact).square().mean())
    assert errors[0.95, True] < 0.2 * errors[0.95, False]
    assert errors[0.1, True] > 5 * errors[0.1, False]


def test_scores_near_walls():
    """Half a Gaussian, x > 0: end points find its mean; scores are finite and lack the term of the boundary.

    Given x_t, x_1 is a Gaussian N(m, s²) cut at zero, whose mean is μ = m + s φ(m/s)/Φ(m/s). The mean score −μ gives
    x_t/α − (σ/α)² μ, which is even outside.
    """
    path = ProductPath(Space(x=Real(1)))

    def energy(state, r):
        x = state["x"][..., 0]
        value = torch.where(x > 0, 0.5 * x.square(), math.inf)
        return value, {"x": torch.where(x > 0, x, math.nan)[..., None]}

    t, x_t = 0.5, {"x": torch.full((3, 1), 0.2, dtype=torch.float64)}
    times = torch.full((3,), t, dtype=torch.float64)
    precision = 1 + (t / (1 - t)) ** 2
    m, s = 0.2 * t / (1 - t) ** 2 / precision, precision**-0.5
    density, share = math.exp(-0.5 * (m / s) ** 2) / math.sqrt(2 * math.pi), 0.5 * (1 + math.erf(m / s / math.sqrt(2)))
    mean = m + s * density / share
    for scores, expected in ((None, mean), (energy, 0.2 / t - ((1 - t) / t) ** 2 * mean)):
        got = estimate(
            lambda x, r: energy(x, r)[0], path, {"x": Flow(path["x"])}, x_t, times, count=40_000,  # type: ignore[arg-type]
            scores=scores, generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        assert float(got.prediction["x"].mean()) == pytest.approx(expected, abs=0.02)
        assert bool((got.ess < 1).all())
    assert mean > 0.6
    assert 0.2 / t - ((1 - t) / t) ** 2 * mean < 0


@pytest.mark.parametrize("name", ["ising-masked", "ising-uniform"])
def test_exact_end_points_give_the_exact_denoiser(name):
    """Without sampling: averaging over the exact law of x_r given x_t, then converting, is the exact denoiser."""
    oracle = ORACLES[name]
    start, path, r = oracle.start(), oracle.path["s"], torch.tensor(0.7, dtype=torch.float64)
    values = range(path.alphabet)
    x_r = torch.tensor(list(itertools.product(values, repeat=4))).reshape(-1, 2, 2)
    x_t = start["s"].expand_as(x_r)
    log_w = path.log_prob(x_t, x_r, T, r) - oracle.energy({"s": x_r}, r)
    table = path.average(x_r, torch.softmax(log_w, 0))
    torch.testing.assert_close(path.denoised(start["s"], table, T, r), oracle.prediction(start, T)["s"])


@pytest.mark.parametrize("proposal", ["flat", "reference"])
@pytest.mark.parametrize("r", [1.0, 0.65])
@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_energy_estimate_is_unbiased_in_density(oracle, r, proposal):
    got, _ = repeat(oracle, r, 64, 4000, proposal=proposal)
    exact = oracle.energy(oracle.start(), T)
    assert_mean(torch.exp(exact - got.energy), 1.0)


@pytest.mark.parametrize("proposal", ["flat", "reference"])
@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_bootstrapping_evens_out_the_weights(oracle, proposal):
    """A short step with the exact E_r: log-weights vary less and the effective sample size is larger.

    (Flat proposals of masked sites are no monotone function of r: they prefer the mask, and at r = 0.9 the effective
    sample size on the Ising model is lower than at r = 1.)
    """
    spreads, sizes = [], []
    for r in (1.0, 0.55):
        sizes.append(float(repeat(oracle, r, 1024, 200, proposal=proposal)[0].ess.mean()))
        end = torch.tensor(r, dtype=torch.float64)
        draw = oracle.path.proposer(oracle.start(), T, end, law=proposal)
        x_r = draw(20_000, torch.Generator().manual_seed(0))
        log_w = -oracle.energy(x_r, end)
        spreads.append(float((log_w if proposal == "flat" else log_w - oracle.path.prior_log_prob(x_r, end)).var()))
    assert sizes[1] > 0.8 > sizes[0]
    assert spreads[1] < 0.3 * spreads[0]


# ---------------------------------------------------------------------- targets on which sampling end points at 1 fails


def narrow_gaussian(make, *, dimension=8, width=0.2, mean=0.5):
    """N(mean, width² I) on a Gaussian path: path, process, exact E_r, and a typical state with its denoiser at t."""
    gaussian = make(Real(dimension))
    path = ProductPath(Space(x=gaussian.variable), {"x": gaussian})

    def energy(x, r):
        r = torch.as_tensor(r, dtype=torch.float64)
        variance = gaussian.alpha(r) ** 2 * width**2 + gaussian.variance(r)
        square = (x["x"] - gaussian.alpha(r) * mean).square().sum(-1)
        return square / (2 * variance) + 0.5 * dimension * torch.log(variance / width**2)

    def typical(t):
        alpha, variance = gaussian.alpha(t), gaussian.alpha(t) ** 2 * width**2 + gaussian.variance(t)
        noise = torch.randn(dimension, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        x_t = alpha * mean + variance.sqrt() * noise
        return {"x": x_t}, {"x": mean + alpha * width**2 / variance * (x_t - alpha * mean)}

    return path, {"x": Flow(gaussian)}, energy, typical


def strong_ising(*, beta=1.0, field=0.1):
    """The 3×3 Ising model on a masked path, all sites masked: free energies of all 3⁹ partial states by summation."""
    target = Ising(3, beta, field=field)
    masked_path = Masked(target.space.categorical["s"])
    path = ProductPath(target.space, {"s": masked_path})
    spins = torch.tensor(list(itertools.product((0, 1), repeat=9))).reshape(-1, 3, 3)
    weights = torch.exp(-target.energy(s=spins).double()).reshape((2,) * 9)
    for site in range(9):
        weights = torch.cat([weights, weights.sum(site, keepdim=True)], site)
    free, powers = -weights.log().flatten(), 3 ** torch.arange(8, -1, -1)

    def energy(x, r):
        r, s = torch.as_tensor(r, dtype=torch.float64), x["s"].flatten(-2)
        masked = (s == 2).sum(-1)
        hidden = torch.where(masked > 0, masked * torch.log1p(-r), 0.0)
        return free[(s * powers).sum(-1)] - hidden - (9 - masked) * torch.log(r)

    def typical(t):
        shown = weights.movedim(0, -1).reshape(-1, 3)[-1, :2]  # one site shown, the others summed over
        return {"s": torch.full((3, 3), 2)}, {"s": (shown / shown.sum()).expand(3, 3, 2)}

    return path, {"s": DiscreteJump(masked_path)}, energy, typical


HARD = {
    "gaussian-condot-flat": (lambda: narrow_gaussian(CondOT), "flat", 0.3, 0.35),
    "gaussian-condot-reference": (lambda: narrow_gaussian(CondOT), "reference", 0.1, 0.4),
    "gaussian-vp-reference": (lambda: narrow_gaussian(VP), "reference", 0.1, 0.4),
    "gaussian-ve-flat": (lambda: narrow_gaussian(lambda v: VE(v, sigma_min=0.05)), "flat", 0.1, 0.15),
    "gaussian-ve-reference": (lambda: narrow_gaussian(lambda v: VE(v, sigma_min=0.05)), "reference", 0.1, 0.2),
    "ising-flat": (strong_ising, "flat", 0.05, 0.55),
    "ising-reference": (strong_ising, "reference", 0.05, 0.25),
}


@pytest.mark.parametrize(("make", "proposal", "t", "r"), HARD.values(), ids=HARD)
def test_bootstrapped_estimates_vary_less_where_end_points_are_hard_to_hit(make, proposal, t, r):
    """With the exact E_r, at equal K: variance and mean squared error of the denoiser, bootstrapped against r = 1.

    This holds where the target is much narrower than the proposals at r = 1, so that few of them carry weight. On easy
    targets (the oracles above) the opposite holds: the average at r is divided by B, or by (κ_r−κ_t)/(1−κ_t), which is
    small for a short step, and that costs more than even weights bring. The best r lies in between.
    """
    path, processes, energy, typical = make()
    n, time = 200, torch.tensor(t, dtype=torch.float64)
    start, exact = typical(time)
    (name, value), (x, *_) = *exact.items(), start.values()

    def spread(end):
        generator = torch.Generator().manual_seed(1)
        x_t = {name: x.expand(n, *x.shape)}
        got = estimate(
            energy, path, processes, x_t, time.expand(n), r=end, count=500, proposal=proposal, generator=generator
        )
        return got.prediction[name].var(0).mean(), (got.prediction[name] - value).square().mean()

    direct, bootstrapped = spread(1.0), spread(torch.tensor(r, dtype=torch.float64))
    assert bootstrapped[0] < direct[0] / 3
    assert bootstrapped[1] < direct[1] / 3


@pytest.mark.parametrize("proposal", ["flat", "reference"])
@pytest.mark.parametrize("name", ["ising-masked", "gaussian-condot", "gaussian-ve", "gaussian-vp", "mixed-masked"])
def test_on_easy_targets_short_steps_cost_variance(name, proposal):
    """The other side: each end point at r says less about x_1, and here that outweighs the evener weights."""
    (direct, _), (near, _) = (repeat(ORACLES[name], r, 256, 300, proposal=proposal) for r in (1.0, 0.55))
    for key, value in direct.prediction.items():
        assert value.var(0).mean() < near.prediction[key].var(0).mean()


@pytest.mark.parametrize("name", ["gaussian-condot", "gaussian-ve", "mixed-masked"])
def test_results_do_not_depend_on_the_chunks(name):
    oracle = ORACLES[name]
    one, _ = repeat(oracle, 0.65, 700, 7)
    need = chunk_size(
        oracle.processes, {n: x.expand(7, *x.shape) for n, x in oracle.start().items()}, count=700, memory=2**30
    )
    assert need == 700
    small, _ = repeat(oracle, 0.65, 700, 7, memory=100_000)
    for key, value in one.prediction.items():
        torch.testing.assert_close(small.prediction[key], value)
    torch.testing.assert_close(small.energy, one.energy)
    torch.testing.assert_close(small.ess, one.ess)


def test_an_energy_that_needs_much_memory_is_asked_in_slices():
    oracle, sizes = ORACLES["gaussian-condot"], []

    def energy(x, r):
        sizes.append(x["x"].shape[:-1].numel() if x["x"].ndim > 2 else x["x"].numel())
        return oracle.energy(x, r)

    x_t = {"x": torch.linspace(-1, 1, 7, dtype=torch.float64)}
    results = []
    for state_bytes in (0, 10_000):
        sizes.clear()
        generator = torch.Generator().manual_seed(0)
        results.append(
            estimate(
                energy, oracle.path, oracle.processes, x_t, T, r=0.65, count=700, generator=generator, memory=2**20,
                state_bytes=state_bytes,
            )
        )  # fmt: skip
    assert sum(sizes) == 7 * 700
    assert 7 <= max(sizes) <= 2**20 / 10_000
    torch.testing.assert_close(results[1].energy, results[0].energy)
    torch.testing.assert_close(results[1].prediction["x"], results[0].prediction["x"])


def test_every_process_averages_its_own_parameter():
    """The jump kernel is the posterior mean of conditional kernels; flow and diffusion share the denoiser."""
    oracle = ORACLES["gaussian-condot"]
    path = oracle.path["x"]
    jump = Jump(path, bins=12)
    x_t, generator = torch.zeros(100, dtype=torch.float64) + 0.1, torch.Generator().manual_seed(0)
    arguments = ({"x": x_t}, T)
    got = estimate(oracle.energy, oracle.path, {"x": jump}, *arguments, count=4096, generator=generator)
    # exact posterior of x_1: Gaussian; the kernel averaged over it by quadrature
    variance = 1 / (1 / 0.2 + 0.25 / 0.25)
    mean = variance * (0.6 / 0.2 + 0.5 * 0.1 / 0.25)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    x_1 = torch.tensor(mean + math.sqrt(variance) * nodes)
    kernels = jump.kernel(x_t[:1].expand(80), x_1, T)
    exact = torch.tensor(weights / weights.sum()) @ kernels
    torch.testing.assert_close(got.prediction["x"].mean(0), exact, rtol=0.02, atol=2e-3)
    flow, diffusion = (
        estimate(
            oracle.energy,
            oracle.path,
            {"x": process(path)},
            *arguments,
            count=64,
            generator=torch.Generator().manual_seed(1),
        )
        for process in (Flow, Diffusion)
    )
    torch.testing.assert_close(flow.prediction["x"], diffusion.prediction["x"])
    with pytest.raises(ValueError, match="cannot be bootstrapped"):
        estimate(oracle.energy, oracle.path, {"x": jump}, *arguments, r=0.7, count=64)


def uniform_line():
    space = Space(x=Real(1))
    path = ProductPath(space)
    return path, {"x": Flow(path["x"])}  # type: ignore[arg-type]


def test_effective_sample_size_of_known_weights():
    path, processes = uniform_line()
    x_t = {"x": torch.full((3, 1), 0.2)}
    flat = estimate(lambda x, r: torch.zeros(x["x"].shape[:-1]), path, processes, x_t, 0.5, count=100)
    torch.testing.assert_close(flat.ess, torch.ones(3))
    half = estimate(
        lambda x, r: torch.where(torch.arange(len(x["x"]))[:, None] % 2 == 0, 0.0, math.inf).expand(x["x"].shape[:-1]),
        path, processes, x_t, 0.5, count=100,
    )  # fmt: skip
    torch.testing.assert_close(half.ess, torch.full((3,), 0.5))
    torch.testing.assert_close(half.energy - flat.energy, torch.full((3,), math.log(2)))


def test_walls_are_zero_weights_and_never_nan():
    path, processes = uniform_line()
    x_t = {"x": torch.tensor([[0.2], [0.2]])}

    def wall(x, r):
        legal = torch.tensor([True, False]).expand(x["x"].shape[:-1])  # the second state has no legal proposal at all
        return torch.where(legal & (x["x"][..., 0] > 0), 0.0, math.inf)

    generator = torch.Generator()
    whole, got = (
        estimate(wall, path, processes, x_t, 0.5, count=1280, generator=generator.manual_seed(0), memory=memory)
        for memory in (2**30, 6400)
    )
    assert chunk_size(processes, x_t, count=1280, memory=6400) == 128  # ten chunks, the second state empty in each
    torch.testing.assert_close(got.prediction["x"], whole.prediction["x"])
    torch.testing.assert_close(got.ess, whole.ess)
    assert 0 < float(got.ess[0]) < 1
    assert float(got.prediction["x"][0]) > 0
    assert got.energy.tolist()[1] == math.inf
    assert got.ess.tolist()[1] == 0
    assert bool(torch.isfinite(got.prediction["x"]).all())


def test_huge_energies_do_not_overflow():
    path, processes = uniform_line()
    x_t = {"x": torch.tensor([[0.2]])}
    for shift in (-1e5, 1e5):
        got = estimate(lambda x, r, e=shift: e + x["x"][..., 0].square(), path, processes, x_t, 0.5, count=64)
        assert bool(torch.isfinite(got.energy).all())
        assert float(got.energy) == pytest.approx(shift, rel=1e-3)


def test_limits_are_named():
    path, processes = uniform_line()
    x_t = {"x": torch.zeros(1000, 1)}
    with pytest.raises(ValueError, match=r"memory=1000 bytes is too small: 64 proposals .* raise memory"):
        estimate(lambda x, r: x["x"].sum(-1), path, processes, x_t, 0.5, count=64, memory=1000)
    with pytest.raises(
        ValueError, match=r"memory=2000000 bytes is too small: the energy of one .* takes 3000000; raise"
    ):
        estimate(lambda x, r: x["x"].sum(-1), path, processes, x_t, 0.5, count=64, memory=2_000_000, state_bytes=3000)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        estimate(lambda x, r: x["x"].sum(-1), path, processes, x_t, 0.5, count=0)
    score = with_gradient(ORACLES["gaussian-condot"])
    with pytest.raises(ValueError, match="only averages of end points can be centred"):
        estimate(lambda x, r: x["x"].sum(-1), path, processes, x_t, 0.5, count=4, scores=score, centred=True)
