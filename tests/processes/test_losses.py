"""Losses: what minimises them, their units, and which estimates and sites count."""

import math

import pytest
import torch

from egm.paths import VE, VP, CondOT, Cosine, Masked, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow, Jump, Loss
from egm.processes.base import RealLoss, SymbolLoss
from egm.spaces.variables import Categorical, Real
from support.cases import GAUSSIAN, REALS

T = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
PATHS = {"condot": CondOT, "ve": VE, "vp": VP}


def real_loss(process, x_t, t, estimate, prediction, *, kind: RealLoss = "denoiser", clip=None):
    return process.loss(x_t, t, estimate, prediction, by=Loss(real=kind, clip=clip))


def symbol_loss(process, x_t, estimate, logits, *, kind: SymbolLoss = "cross-entropy", sites=None):
    return process.loss(x_t, T, estimate, logits, by=Loss(symbols=kind), sites=sites)


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tables(*shape, seed=0, total=None):
    """Positive tables [*shape]; they sum to one, or to `total`."""
    table = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.05
    return table / table.sum(-1, keepdim=True) * (1.0 if total is None else total)


def gradient(loss, prediction):
    leaf = prediction.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(leaf).sum(), leaf)
    return found


def minimised_at(loss, best, *, rtol=1e-10):
    """The gradient vanishes at `best` (compared with its size nearby), and the loss rises on both sides."""
    step = 0.1 * noise(*best.shape, seed=9)
    nearby = gradient(loss, best + step)
    assert gradient(loss, best).abs().max() < rtol * nearby.abs().max()
    assert bool((loss(best) < loss(best + step)).all())
    assert bool((loss(best) < loss(best - step)).all())


# ---------------------------------------------------------------------- reals


@pytest.mark.parametrize("kind", ["denoiser", "generator"])
@pytest.mark.parametrize("process", [Flow, Diffusion])
@pytest.mark.parametrize("make", PATHS.values(), ids=PATHS)
def test_reals_are_minimised_by_the_mean_of_the_estimates(make, process, kind):
    process = process(make(Real(4)))
    x_t, estimates = noise(3, 4), noise(50, 3, 4, seed=1)
    minimised_at(
        lambda mean: real_loss(process, x_t.expand(50, 3, 4), T, estimates, mean.expand(50, 3, 4), kind=kind).mean(0),
        estimates.mean(0),
    )


@pytest.mark.parametrize("variable", REALS.values(), ids=REALS)
@pytest.mark.parametrize("process", [Flow, Diffusion])
@pytest.mark.parametrize("make", GAUSSIAN.values(), ids=GAUSSIAN)
def test_generator_loss_is_the_squared_error_of_the_drift(make, process, variable):
    process = process(make(variable))
    generator = torch.Generator().manual_seed(0)
    x_t, estimate, prediction = (variable.noise((3,), generator=generator, dtype=torch.float64) for _ in range(3))
    found = real_loss(process, x_t, T, estimate, prediction, kind="generator")
    a, b = (process.marginal(x_t, x_1, T).drift for x_1 in (estimate, prediction))
    assert found.shape == (3,)
    torch.testing.assert_close(found, (a - b).square().reshape(3, -1).sum(-1) / variable.dimension)


@pytest.mark.parametrize("variable", REALS.values(), ids=REALS)
@pytest.mark.parametrize("make", GAUSSIAN.values(), ids=GAUSSIAN)
def test_denoiser_loss_is_the_error_in_units_of_the_reference_posterior(make, variable):
    """The posterior of x_1 under the reference law has the variance σ²/(α² + σ²) in each degree of freedom."""
    path = make(variable)
    generator = torch.Generator().manual_seed(0)
    x_t, estimate, prediction = (variable.noise((3,), generator=generator, dtype=torch.float64) for _ in range(3))
    found = real_loss(Flow(path), x_t, T, estimate, prediction)
    posterior = path.variance(T) / (path.alpha(T).square() + path.variance(T))
    square = (estimate - prediction).square().reshape(3, -1).sum(-1)
    torch.testing.assert_close(found, square / posterior / variable.dimension)


@pytest.mark.parametrize("make", PATHS.values(), ids=PATHS)
def test_denoiser_targets_have_unit_size_at_every_time(make):
    """An end point of the reference law, and the reference denoiser as prediction: the mean loss is one."""
    path, n = make(Real(2)), 20_000
    generator = torch.Generator().manual_seed(0)
    for t in (0.05, 0.5, 0.95):
        x_1 = path.variable.noise((n,), generator=generator, dtype=torch.float64)
        x_t, time = path.sample(x_1, t, generator=generator), torch.tensor(t, dtype=torch.float64)
        denoised = path.alpha(time) / (path.alpha(time).square() + path.variance(time)) * x_t
        loss = real_loss(Flow(path), x_t, time.expand(n), x_1, denoised)
        assert float(loss.mean()) == pytest.approx(1.0, abs=4 / math.sqrt(n))


@pytest.mark.parametrize("variable", [Real(()), Real(3), Real((2, 2), centered=True)], ids=["scalar", "3d", "centred"])
@pytest.mark.parametrize("kind", ["denoiser", "generator"])
def test_clip_cuts_the_norm_of_the_estimate_and_keeps_its_direction(kind, variable):
    """The prediction whose regression value is zero sees exactly the clipped square; short estimates are untouched."""
    path, generator = CondOT(variable), torch.Generator().manual_seed(0)
    process, shape = Flow(path), (3, *variable.latent_shape)
    x_t, estimate = (variable.noise((3,), generator=generator, dtype=torch.float64) for _ in range(2))
    t = path.over_sites(T, x_t)
    alpha, variance = path.alpha(t), path.variance(t)
    if kind == "denoiser":
        total = alpha.square() + variance
        zero, unit = alpha / total * x_t, (total / variance).sqrt()  # F = (x̂_1 − zero)·unit
    else:
        zero, unit = x_t, 1 / (1 - t)  # u = (x̂_1 − x_t)/(1 − t)
    value = (estimate - zero) * unit
    norm = value.reshape(3, -1).norm(dim=-1).reshape((3, *(1,) * len(variable.latent_shape)))

    def loss(prediction, clip):
        return real_loss(process, x_t, T, estimate, prediction, kind=kind, clip=clip)

    clip = float(norm.median())  # cuts one estimate, and leaves two alone
    expected = norm.reshape(3).clamp(max=clip).square() / variable.dimension
    torch.testing.assert_close(loss(zero.expand(shape), clip), expected)
    torch.testing.assert_close(loss(zero + value / norm * norm.clamp(max=clip) / unit, clip), torch.zeros_like(T))
    torch.testing.assert_close(loss(zero, 2 * float(norm.max())), loss(zero, None))


@pytest.mark.parametrize("kind", ["denoiser", "generator"])
def test_the_centre_of_mass_of_a_prediction_does_not_count(kind):
    variable = Real((3, 2), centered=True)
    process = Diffusion(CondOT(variable))
    x_t, estimate = variable.project(noise(3, 3, 2)), variable.project(noise(3, 3, 2, seed=1))
    prediction = noise(3, 3, 2, seed=2)
    moved = prediction + noise(3, 1, 2, seed=3)
    a, b = (real_loss(process, x_t, T, estimate, p, kind=kind) for p in (prediction, moved))
    torch.testing.assert_close(a, b)
    assert float(a.min()) > 0
    found = gradient(lambda p: real_loss(process, x_t, T, estimate, p, kind=kind), prediction)
    torch.testing.assert_close(found.sum(1), torch.zeros(3, 2, dtype=torch.float64))


# ---------------------------------------------------------------------- symbols

SPIN, UNEQUAL = Categorical(3, shape=(2, 2)), Categorical([2, 3, 4])


@pytest.mark.parametrize("kind", ["cross-entropy", "squared"])
@pytest.mark.parametrize("make", [Masked, Uniform, lambda v: Masked(v, schedule=Cosine())])
def test_symbols_are_minimised_by_the_mean_of_the_tables(make, kind):
    path = make(SPIN)
    process, x_t = DiscreteJump(path), torch.full((1, 2, 2), path.alphabet - 1)
    estimates = tables(50, 1, 2, 2, 3)
    loss = lambda o: symbol_loss(process, x_t.expand(50, 1, 2, 2), estimates, o.expand(50, 1, 2, 2, 3), kind=kind)  # noqa: E731
    minimised_at(lambda logits: loss(logits).mean(0), estimates.mean(0).log())


def test_tables_that_do_not_sum_to_one_leave_the_minimiser_of_the_cross_entropy():
    """Bootstrapped tables: positive or negative, of any sum; what counts is their mean, as long as that sums to one."""
    process, x_t = DiscreteJump(Masked(SPIN)), torch.full((200, 1, 2, 2), 3)
    mean = tables(1, 2, 2, 3)
    estimates = mean + 0.7 * noise(200, 1, 2, 2, 3, seed=1)
    estimates = estimates - estimates.mean(0) + mean
    assert bool((estimates < 0).any())
    assert float(estimates.sum(-1).std()) > 0.5
    minimised_at(lambda o: symbol_loss(process, x_t, estimates, o.expand(200, 1, 2, 2, 3)).mean(0), mean.log())


def test_the_cross_entropy_has_no_gradient_noise_where_only_the_sum_fluctuates():
    process, x_t = DiscreteJump(Masked(SPIN)), torch.full((7, 2, 2), 3)
    right = tables(1, 2, 2, 3).expand(7, 2, 2, 3)
    estimates = right * torch.linspace(0.2, 3.0, 7, dtype=torch.float64)[:, None, None, None]
    found = gradient(lambda o: symbol_loss(process, x_t, estimates, o), right.log())
    assert found.abs().max() < 1e-12
    squared = gradient(lambda o: symbol_loss(process, x_t, estimates, o, kind="squared"), right.log())
    assert squared.abs().max() > 1e-3


def test_values_of_the_symbol_losses():
    process, x_t = DiscreteJump(Masked(SPIN)), torch.full((5, 2, 2), 3)
    estimate, logits = tables(5, 2, 2, 3), noise(5, 2, 2, 3)
    p = torch.softmax(logits, -1)
    entropy, squared = (symbol_loss(process, x_t, estimate, logits, kind=k) for k in ("cross-entropy", "squared"))
    torch.testing.assert_close(entropy, -(estimate * p.log()).sum((1, 2, 3)) / 4)
    torch.testing.assert_close(squared, (estimate - p).square().sum((1, 2, 3)) / 4)
    one = DiscreteJump(Masked(Categorical(3)))
    alone = symbol_loss(one, torch.full((5,), 3), estimate[:, 0, 0], logits[:, 0, 0])
    torch.testing.assert_close(alone, -(estimate * p.log())[:, 0, 0].sum(-1))


@pytest.mark.parametrize("kind", ["cross-entropy", "squared"])
def test_revealed_sites_do_not_count(kind):
    process = DiscreteJump(Masked(SPIN))
    estimate, logits = tables(1, 2, 2, 3), noise(1, 2, 2, 3)
    each = torch.stack(
        [
            symbol_loss(process, torch.where(torch.arange(4) == i, 3, 0).reshape(1, 2, 2), estimate, logits, kind=kind)
            for i in range(4)
        ]
    )
    assert bool((each > 0).all())
    whole = symbol_loss(process, torch.full((1, 2, 2), 3), estimate, logits, kind=kind)
    torch.testing.assert_close(each.sum(0), whole)  # each site 1/4, whatever the number of masked ones
    revealed = torch.zeros(1, 2, 2, dtype=torch.int64)
    assert float(symbol_loss(process, revealed, estimate, logits, kind=kind)) == 0
    found = gradient(lambda o: symbol_loss(process, revealed, estimate, o, kind=kind), logits)
    assert float(found.abs().max()) == 0
    everywhere = symbol_loss(DiscreteJump(Uniform(SPIN)), revealed, estimate, logits, kind=kind)
    torch.testing.assert_close(everywhere, whole)  # a uniform path may change every site


@pytest.mark.parametrize("kind", ["cross-entropy", "squared"])
def test_sites_weigh_the_sites(kind):
    process, x_t = DiscreteJump(Masked(SPIN)), torch.full((2, 2, 2), 3)
    estimate, logits = tables(2, 2, 2, 3), noise(2, 2, 2, 3)
    each = [
        symbol_loss(
            process, x_t, estimate, logits, kind=kind, sites=(torch.arange(4) == i).reshape(2, 2).expand(2, 2, 2)
        )
        for i in range(4)
    ]
    weights = torch.tensor([[[0.0, 4.0], [0.0, 0.0]], [[2.0, 0.0], [0.5, 2.0]]], dtype=torch.float64)
    found = symbol_loss(process, x_t, estimate, logits, kind=kind, sites=weights)
    torch.testing.assert_close(found, (torch.stack(each, -1) * weights.reshape(2, 4)).sum(-1))


@pytest.mark.parametrize("make", [Masked, Uniform])
@pytest.mark.parametrize("kind", ["cross-entropy", "squared"])
def test_logits_of_illegal_symbols_have_no_say(make, kind):
    path = make(UNEQUAL)
    process, x_t = DiscreteJump(path), torch.tensor([path.alphabet - 1] * 3).clamp(max=4).expand(6, 3).clone()
    x_t = x_t if make is Masked else torch.ones(6, 3, dtype=torch.int64)
    legal = UNEQUAL.legal(x_t)
    estimate, logits = tables(6, 3, 4) * legal, noise(6, 3, 4)
    losses = [
        symbol_loss(process, x_t, estimate, torch.where(legal, logits, other), kind=kind)
        for other in (torch.zeros(()), torch.tensor(50.0), torch.tensor(-math.inf))
    ]
    for loss in losses:
        torch.testing.assert_close(loss, losses[0])
        assert bool(torch.isfinite(loss).all())
    found = gradient(lambda o: symbol_loss(process, x_t, estimate, o, kind=kind), logits)
    assert bool(torch.isfinite(found).all())
    assert float(found[~legal.expand(6, 3, 4)].abs().max()) == 0
    assert float(found[legal.expand(6, 3, 4)].abs().min()) > 0


# ---------------------------------------------------------------------- jumps


def jump_case(make=CondOT, shape=(2,), bins=5):
    process = Jump(make(Real(shape)), bins=bins)
    size = (3, *process.output_shape)
    return process, noise(3, *shape), tables(*size, seed=1, total=2.0), tables(*size, seed=2, total=0.7)


@pytest.mark.parametrize("make", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_jump_loss_is_the_generalised_divergence_in_units_of_the_rate(make, shape):
    process, x_t, a, b = jump_case(make, shape)
    found = process.loss(x_t, T, a, b.log())  # a network gives log-rates
    rate = (0.5 * process.path.log_variance_dot(T)).abs()
    by_hand = (a * (a / b).log() - a + b).reshape(3, -1).sum(-1) / rate / process.path.variable.dimension
    torch.testing.assert_close(found, by_hand)


def test_jumps_are_minimised_by_the_mean_of_the_kernels():
    process, x_t, a, _ = jump_case()
    kernels = a * torch.rand(50, *a.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    kernels[kernels < 0.1] = 0.0  # many conditional rates vanish
    minimised_at(
        lambda log_rates: process.loss(x_t.expand(50, 3, 2), T, kernels, log_rates).mean(0),
        kernels.mean(0).log(),
    )


def test_empty_kernels_have_a_finite_loss():
    process, x_t, _, b = jump_case()
    rate = (0.5 * process.path.log_variance_dot(T)).abs()
    torch.testing.assert_close(process.loss(x_t, T, torch.zeros_like(b), b.log()), b.sum((1, 2)) / rate / 2)


# ---------------------------------------------------------------------- all of them


def every_loss():
    """For each kind of prediction: its process, states, two estimates, and the output whose prediction is the first."""
    x_t, a, b = noise(3, 2), noise(3, 2, seed=1), noise(3, 2, seed=2)
    for process in (Flow(VP(Real(2))), Diffusion(CondOT(Real(2)))):
        yield process, x_t, a, b, a
    process, x_t, a, b = jump_case()
    yield process, x_t, a, b, a.log()
    a, b = tables(3, 2, 2, 3), tables(3, 2, 2, 3, seed=1)
    yield DiscreteJump(Masked(SPIN)), torch.full((3, 2, 2), 3), a, b, a.log()


@pytest.mark.parametrize("real", ["denoiser", "generator"])
def test_losses_are_positive_but_for_the_estimate_itself(real):
    for process, x_t, a, b, output in every_loss():
        by = Loss(real=real, symbols="squared")
        torch.testing.assert_close(process.loss(x_t, T, a, output, by=by), torch.zeros_like(T))
        assert bool((process.loss(x_t, T, b, output, by=by) > 0).all())


def test_options_of_other_predictions_change_nothing():
    """So that one call serves all processes."""
    for process, x_t, _, b, output in every_loss():
        by, sites = Loss(symbols="squared"), torch.zeros_like(x_t)
        if isinstance(process, Jump):
            by = Loss(real="generator", symbols="squared", clip=0.01)
        if isinstance(process, DiscreteJump):
            by, sites = Loss(real="generator", clip=0.01), None
        assert torch.equal(process.loss(x_t, T, b, output, by=by, sites=sites), process.loss(x_t, T, b, output))
