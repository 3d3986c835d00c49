"""Simulation steps and their densities."""

import itertools

import pytest
import torch
from scipy import stats as scipy_stats

from egm.paths import VE, CondOT, Foellmer, Masked, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow, Jump, Superposition
from egm.processes.base import sample_table
from egm.spaces.variables import Categorical, Real
from support.cases import DISCRETE, GAUSSIAN, REALS, SYMBOLS, gauss_hermite, pairs, random_value, states
from support.stats import assert_counts, assert_mean, assert_variance

TIMES = [(0.1, 0.3), (0.5, 0.8), (0.9, 0.95)]


# ---------------------------------------------------------------------- diffusion


@pytest.mark.parametrize(("t", "r"), TIMES)
@pytest.mark.parametrize("path", pairs(GAUSSIAN, REALS))
def test_widened_diffusion_step_is_exact_for_a_gaussian_target(path, t, r):
    """For x_1 ~ N(0, τ²) the exact p_{r|t} ∝ p_{t|r} p_r is N(A x_t + B x̂_1, V + B² Var[x_1 | x_t])."""
    tau2 = 0.7
    t, r = torch.tensor([t, r], dtype=torch.float64)
    x_t = random_value(path, 0)
    variance_t = path.alpha(t) ** 2 * tau2 + path.variance(t)
    denoised = path.alpha(t) * tau2 / variance_t * x_t
    error = tau2 * path.variance(t) / variance_t
    x_r = path.variable.noise((20,), generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def log_marginal(x, time):
        return path.variable.gaussian_log_prob(x, path.alpha(time) ** 2 * tau2 + path.variance(time))

    exact = path.log_prob(x_t, x_r, t, r) + log_marginal(x_r, r) - log_marginal(x_t, t)
    shape = (20, *x_t.shape)
    got = Diffusion(path).log_step(x_r, x_t.expand(shape), denoised.expand(shape), t, r, error=error)
    torch.testing.assert_close(got, exact)


@pytest.mark.parametrize("path", pairs(GAUSSIAN, REALS))
def test_diffusion_step_follows_its_density(path):
    process, axes = Diffusion(path), path.variable.latent_shape
    x_t, denoised = random_value(path, 0).expand(20_000, *axes), random_value(path, 1).expand(20_000, *axes)
    error = torch.full((20_000,), 0.3, dtype=torch.float64)
    x_r = process.step(x_t, denoised, 0.4, 0.6, error=error, generator=torch.Generator().manual_seed(0))
    nodes, weights = gauss_hermite(path.variable, 20)
    mean, variance, b = path.bridge(x_t[0], denoised[0], 0.4, 0.6)
    width = 1.2 * (variance + 0.3 * b**2).sqrt()
    points = mean + width * nodes
    log_step = process.log_step(
        points, x_t[: len(points)], denoised[: len(points)], 0.4, 0.6, error=error[: len(points)]
    )
    density = weights * (log_step - path.variable.gaussian_log_prob(points - mean, width.flatten()[0] ** 2)).exp()
    assert float(density.sum()) == pytest.approx(1, abs=1e-6)
    column = density.reshape(-1, *(1,) * len(axes))
    first = (column * points).sum(0)
    assert_mean(x_r, first, "mean")
    assert_variance(x_r, (column * (points - first) ** 2).sum(0), "variance")


@pytest.mark.parametrize("make", GAUSSIAN.values(), ids=GAUSSIAN)
def test_the_centre_of_mass_of_a_prediction_does_not_matter(make):
    """A network need not know that the variable is centred: a shift of all particles changes nothing."""
    path = make(Real((3, 2), centered=True))
    x_t, x_r, centred = (random_value(path, seed).expand(4, 3, 2) for seed in (0, 1, 2))
    shifted = centred + torch.tensor([0.7, -1.3], dtype=torch.float64)
    mixture = Superposition([(0.4, Flow(path)), (0.6, Diffusion(path))])

    def results(prediction):
        for process in (Flow(path), Diffusion(path)):
            yield process.marginal(x_t, prediction, 0.4).drift
            yield process.step(x_t, prediction, 0.4, 0.6, generator=torch.Generator().manual_seed(0))
        yield mixture.marginal(x_t, [prediction, prediction], 0.4).drift
        yield mixture.step(x_t, [prediction, prediction], 0.4, 0.6, generator=torch.Generator().manual_seed(0))
        yield Diffusion(path).log_step(x_r, x_t, prediction, 0.4, 0.6, error=0.2)

    for got, want in zip(results(shifted), results(centred), strict=True):
        torch.testing.assert_close(got, want)
        if got.ndim > 1:
            assert float(got.mean(-2).abs().max()) < 1e-9 * float(got.abs().max())


# ---------------------------------------------------------------------- discrete jump


@pytest.mark.parametrize(("t", "r"), [*TIMES, (0.4, 1.0)])
@pytest.mark.parametrize("path", pairs(DISCRETE, {"one-site": SYMBOLS["one-site"]}))
def test_discrete_step_is_exact_on_one_site(path, t, r):
    """With the exact denoiser the step kernel is p_{r|t} ∝ p_{t|r} p_r, for any target on one site."""
    t, r = torch.tensor([t, r], dtype=torch.float64)
    process, p_1 = DiscreteJump(path), torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    x_1, x_t, x_r = states(path, running=False), states(path, running=True), states(path, running=float(r) < 1)

    def law(x, time):
        if float(time) == 1:
            return p_1
        return torch.stack([path.log_prob(x, end.expand_as(x), time).exp() for end in x_1], -1) @ p_1

    for i, x in enumerate(x_t):
        likelihood = path.log_prob(x.expand_as(x_1), x_1, t).exp()
        denoised = likelihood * p_1 / (likelihood @ p_1)
        exact = path.log_prob(x.expand_as(x_r), x_r, t, r).exp() * law(x_r, r) / law(x_t, t)[i]
        got = process.log_step(x_r, x.expand_as(x_r), denoised.expand(len(x_r), -1), t, r).exp()
        torch.testing.assert_close(got, exact)


@pytest.mark.parametrize("path", pairs(DISCRETE, SYMBOLS))
def test_discrete_step_follows_its_density(path):
    generator = torch.Generator().manual_seed(0)
    process, every = DiscreteJump(path), states(path, running=True)
    for x_t in every:
        denoised = torch.rand(*x_t.shape, path.variable.size, generator=generator, dtype=torch.float64)
        denoised = denoised * path.variable.legal(x_t)
        denoised = denoised / denoised.sum(-1, keepdim=True)
        many = (20_000, *x_t.shape)
        x_r = process.step(x_t.expand(many), denoised.expand(*many, -1), 0.4, 0.7, generator=generator)
        law = process.log_step(every, x_t.expand_as(every), denoised.expand(*every.shape, -1), 0.4, 0.7).exp()
        assert float(law.sum()) == pytest.approx(1)
        hits = (x_r.reshape(20_000, 1, -1) == every.reshape(1, len(every), -1)).all(-1).sum(0)
        assert_counts(hits, law)


@pytest.mark.parametrize("path", pairs(DISCRETE, SYMBOLS))
def test_log_step_broadcasts_over_leading_axes(path):
    generator, x_t = torch.Generator().manual_seed(0), states(path, running=True)
    denoised = torch.rand(*x_t.shape, path.variable.size, generator=generator, dtype=torch.float64)
    x_r = x_t[torch.randint(len(x_t), (5, len(x_t)), generator=generator)]
    t = torch.linspace(0.2, 0.5, len(x_t), dtype=torch.float64)
    got = DiscreteJump(path).log_step(x_r, x_t, denoised, t, 0.7)
    each = [DiscreteJump(path).log_step(row, x_t, denoised, t, 0.7) for row in x_r]
    torch.testing.assert_close(got, torch.stack(each))


def test_small_discrete_steps_agree_with_the_rates():
    for path in (Masked(Categorical(3, shape=())), Uniform(Categorical(3, shape=()))):
        table = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
        for x_t in states(path, running=True):
            h = 1e-6
            rates = DiscreteJump(path).marginal(x_t, table, torch.tensor(0.4, dtype=torch.float64))
            kernel = path.bridge(x_t, table, *torch.tensor([0.4, 0.4 + h], dtype=torch.float64))[..., :3]
            moves = torch.arange(3) != x_t
            torch.testing.assert_close((kernel / h)[moves], rates[moves], rtol=1e-4, atol=1e-8)


# ---------------------------------------------------------------------- flow


@pytest.mark.parametrize("make", GAUSSIAN.values(), ids=GAUSSIAN)
def test_flow_converges_at_first_order_and_lands_on_the_prediction(make):
    path = make(Real(()))
    flow, tau2 = Flow(path), 0.3

    def simulate(steps):
        x = torch.tensor(0.8, dtype=torch.float64)
        grid = torch.linspace(0.1, 0.9, steps + 1, dtype=torch.float64)
        for t, r in itertools.pairwise(grid):
            variance = path.alpha(t) ** 2 * tau2 + path.variance(t)
            x = flow.step(x, path.alpha(t) * tau2 / variance * x, t, r)
        return float(x)

    def sd(time):
        time = torch.tensor(time, dtype=torch.float64)
        return float(path.alpha(time) ** 2 * tau2 + path.variance(time)) ** 0.5

    exact = 0.8 * sd(0.9) / sd(0.1)  # the flow of a Gaussian is linear
    errors = [abs(simulate(steps) - exact) for steps in (40, 80, 160)]
    for coarse, fine in itertools.pairwise(errors):
        assert coarse / fine == pytest.approx(2, abs=0.2)
    assert float(flow.step(torch.tensor(0.5), torch.tensor(-0.3), 0.9, 1.0)) == pytest.approx(-0.3)


# ---------------------------------------------------------------------- jumps and mixtures, by simulation


def mixture_path(process, path, predictions, *, seed, steps=150, n=6_000):
    """Simulate x_1 ∈ {0.8, −0.6} with probabilities .3, .7 from t = .05 to .7 under exact predictions."""
    generator = torch.Generator().manual_seed(seed)
    x_1, p_1 = torch.tensor([0.8, -0.6], dtype=torch.float64), torch.tensor([0.3, 0.7], dtype=torch.float64)
    choice = sample_table(p_1.expand(n, 2), generator=generator)
    x = path.sample(x_1[choice], 0.05, generator=generator)
    grid = torch.linspace(0.05, 0.7, steps + 1, dtype=torch.float64)
    for t, r in itertools.pairwise(grid):
        log_joint = torch.stack([path.log_prob(x, end.expand_as(x), t) for end in x_1], -1) + p_1.log()
        posterior = torch.softmax(log_joint, -1)
        x = process.step(x, predictions(x, posterior, x_1, t), t, r, generator=generator)
    end, sigma = path.alpha(grid[-1]) * x_1, path.variance(grid[-1]).sqrt()

    def cdf(values):
        values = torch.as_tensor(values)[..., None]
        return (torch.special.ndtr((values - end) / sigma) @ p_1).numpy()

    return float(scipy_stats.kstest(x.numpy(), cdf).statistic)


def kernel_of(jump):
    return lambda x, posterior, x_1, t: sum(
        posterior[:, i, None] * jump.kernel(x, x_1[i].expand_as(x), t) for i in range(2)
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [CondOT, lambda v: VE(v, sigma_min=0.1, sigma_max=2.0)], ids=["condot", "ve"])
def test_jumps_and_mixtures_carry_the_marginals(make):
    """The KS distance to the exact p_t stays at the size of Euler and bin errors, but not if jumps are too rare."""
    path = make(Real(()))
    jump = Jump(path, bins=160)
    kernel = kernel_of(jump)
    assert mixture_path(jump, path, kernel, seed=0) < 0.03
    lazy = lambda x, posterior, x_1, t: 0.1 * kernel(x, posterior, x_1, t)  # noqa: E731
    assert mixture_path(jump, path, lazy, seed=0) > 0.1

    def denoised(x, posterior, x_1, t):
        return posterior @ x_1

    mixture = Superposition([(0.3, Flow(path)), (0.3, Diffusion(path)), (0.4, jump)])
    both = lambda *arguments: [denoised(*arguments), denoised(*arguments), kernel(*arguments)]  # noqa: E731
    assert mixture_path(mixture, path, both, seed=1) < 0.03


def test_jumps_need_a_path_whose_width_falls():
    with pytest.raises(ValueError, match="along Foellmer it rises; use CondOT, VE or VP"):
        Jump(Foellmer(Real(1)))


def test_superposition_checks_its_parts():
    path = CondOT(Real(1))
    with pytest.raises(ValueError, match="sum to one"):
        Superposition([(0.5, Flow(path)), (0.6, Diffusion(path))])
    with pytest.raises(ValueError, match="non-negative"):
        Superposition([(-0.5, Flow(path)), (1.5, Diffusion(path))])
    with pytest.raises(ValueError, match="share one path"):
        Superposition([(0.5, Flow(path)), (0.5, Diffusion(CondOT(Real(1))))])
    with pytest.raises(ValueError, match="centred"):
        Jump(CondOT(Real((2, 2), centered=True)))
    with pytest.raises(ValueError, match="at most one Jump"):
        Superposition([(0.5, Jump(path)), (0.5, Jump(path, bins=8))])
