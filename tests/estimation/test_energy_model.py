"""The learned intermediate energy: its known terms against exact E_t, its units, and noised energy matching."""

import math

import pytest
import torch
from torch import nn

from egm.estimation.energy_model import EnergyModel
from egm.paths import VE, VP, CondOT, Cosine, Masked, Polynomial, ProductPath, Uniform
from egm.spaces import Categorical, Real, Space
from egm.targets import Ising, Target
from support.marginals import LabelledGaussians, TinyIsing

TIMES = [torch.tensor(t, dtype=torch.float64) for t in (0.1, 0.5, 0.9)]
SCHEDULES = {"linear": Polynomial(), "cosine": Cosine(), "square": Polynomial(2.0)}
#: κ_t written out
KAPPA = {"linear": lambda t: t, "cosine": lambda t: 1 - torch.cos(math.pi / 2 * t), "square": lambda t: t * t}


class Given(nn.Module):
    """A network that returns what a function says, plus a trainable constant."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.constant = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x_t, t):
        return self.function(x_t, t) + self.constant


def model_of(oracle, function, **options):
    return EnergyModel(Given(function), oracle.path, oracle.target, **options).double()


def partial_states():
    """All 81 states of 2×2 spins that may be masked."""
    return torch.cartesian_prod(*[torch.arange(3)] * 4).reshape(81, 2, 2)


def free_energy(oracle, s):
    """−log Σ exp(−E) over the completions of a partly masked state, by looking at all 16 states."""
    fits = ((s[:, None] == oracle.states) | (s[:, None] == 2)).all(-1).all(-1)
    energies = oracle.target.energy(s=oracle.states).double()
    return -torch.logsumexp(torch.where(fits, -energies, -torch.inf), -1)


# ---------------------------------------------------------------------- what the network need not learn


@pytest.mark.parametrize("forward_looking", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_with_the_free_energy_as_network_it_is_the_exact_energy_of_a_masked_path(schedule, forward_looking):
    """E_t = F(revealed part) − #masked·log(1−κ) − #revealed·log κ, so the network's share F + #masked·log 2 − E_partial
    is free of time; where nothing is masked it may be any number if the model looks forward.
    """
    oracle = TinyIsing(lambda v: Masked(v, schedule=SCHEDULES[schedule]), beta=0.7)  # type: ignore[arg-type]
    s = partial_states()
    masked = (s == 2).sum((1, 2))
    share = free_energy(oracle, s) + masked * math.log(2)
    if forward_looking:
        share = torch.where(masked > 0, share - oracle.target.partial_energy(s=s), 1e3)
    model = model_of(oracle, lambda x, t: share, forward_looking=forward_looking)
    for t in TIMES:
        torch.testing.assert_close(model({"s": s}, t), oracle.energy({"s": s}, t), rtol=1e-6, atol=1e-6)
    assert float(share.abs().max()) > 0.5  # so that it matters


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_known_terms_of_a_masked_path_by_hand(schedule):
    space = Space(s=Categorical([2, 3, 4]), u=Categorical(5, shape=2))
    paths = {name: Masked(v, schedule=SCHEDULES[schedule]) for name, v in space.categorical.items()}
    target = Target(space, lambda s, u: torch.zeros(s.shape[:-1]))
    model = EnergyModel(Given(lambda x, t: torch.zeros(())), ProductPath(space, paths), target)  # type: ignore[arg-type]
    assert not model.forward_looking
    x_t = {"s": torch.tensor([[4, 4, 4], [0, 4, 3], [1, 2, 4]]), "u": torch.tensor([[5, 5], [0, 5], [3, 1]])}
    hidden = torch.tensor([2 * 3 * 4 * 5 * 5, 3 * 5, 4], dtype=torch.float64).log()
    masked = torch.tensor([5, 2, 1])
    for t in TIMES:
        kappa = KAPPA[schedule](t)
        expected = -hidden - masked * torch.log(1 - kappa) - (5 - masked) * torch.log(kappa)
        torch.testing.assert_close(model.known(x_t, t), expected)
        torch.testing.assert_close(model(x_t, t), expected)
    times = torch.stack(TIMES)  # one for each state
    each = torch.stack([model.known(x_t, t)[i] for i, t in enumerate(TIMES)])
    torch.testing.assert_close(model.known(x_t, times), each)


def test_terms_of_the_target_are_not_rounded_with_the_network():
    class Products(Target):
        """Terms by a matrix product, which autocast would round."""

        def _partial_energy(self, **state):
            spins = torch.where(state["s"] == 2, 0.0, 1.0 - 2.0 * state["s"])
            return (spins @ torch.full((9, 1), 1.2345)).squeeze(-1)

    space = Space(s=Categorical(2, shape=9))
    target = Products(space, lambda s: torch.zeros(s.shape[:-1]))
    model = EnergyModel(Given(lambda x, t: 0.0), ProductPath(space), target)
    assert model.forward_looking
    state, t = {"s": torch.zeros(4, 9, dtype=torch.int64)}, torch.tensor(0.5)
    expected = model.known(state, t)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.known(state, t), expected)


def test_a_uniform_path_has_no_known_terms():
    oracle = TinyIsing(Uniform)
    s = oracle.states
    zero = model_of(oracle, lambda x, t: torch.zeros(16, dtype=torch.float64))
    exact = model_of(oracle, oracle.energy)
    for t in TIMES:
        torch.testing.assert_close(zero({"s": s}, t), torch.zeros(16, dtype=torch.float64), rtol=0, atol=1e-6)
        torch.testing.assert_close(exact({"s": s}, t), oracle.energy({"s": s}, t), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", [CondOT, VP, lambda v: VE(v, sigma_min=0.1)], ids=["condot", "vp", "ve"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_on_a_mixed_space_both_variables_have_their_terms(schedule, make):
    """The network's share of the exact E_t, with every known term written out."""
    oracle = LabelledGaussians(make, lambda v: Masked(v, schedule=SCHEDULES[schedule]))  # type: ignore[arg-type]
    x_t = {"x": torch.linspace(-2, 2, 9, dtype=torch.float64), "b": torch.arange(9) % 3}

    def share(x, t):
        path, kappa = oracle.path["x"], KAPPA[schedule](t)
        variance = path.alpha(t) ** 2 + path.variance(t)  # type: ignore[union-attr]
        gaussian = 0.5 * (x["x"].square() / variance + torch.log(2 * math.pi * variance))
        label = torch.where(x["b"] == 2, -torch.log(2 * (1 - kappa)), -torch.log(kappa))
        return oracle.energy(x, t) - gaussian - label

    model = model_of(oracle, share)
    assert not model.forward_looking
    for t in TIMES:
        torch.testing.assert_close(model(x_t, t), oracle.energy(x_t, t))
    # for the reference law itself a constant network gives the exact energy
    flat = LabelledGaussians(make, masses=(0.5, 0.5), means=(0.0, 0.0), s2=1.0)
    constant = model_of(flat, lambda x, t: torch.full((9,), -flat.log_z + math.log(2), dtype=torch.float64))
    for t in TIMES:
        torch.testing.assert_close(constant(x_t, t), flat.energy(x_t, t))


@pytest.mark.parametrize("garbage", [1e6, -5.0])
def test_where_nothing_is_masked_the_forward_looking_model_is_the_energy(garbage):
    oracle = TinyIsing()
    looking = model_of(oracle, lambda x, t: torch.full(x["s"].shape[:-2], garbage, dtype=torch.float64))
    assert looking.forward_looking
    for t in TIMES:
        expected = oracle.target.energy(s=oracle.states).double() - 4 * torch.log(t)
        torch.testing.assert_close(looking({"s": oracle.states}, t), expected)
    one_masked = oracle.states.clone()
    one_masked[:, 1, 1] = 2
    away = looking({"s": one_masked}, TIMES[0]) - looking.known({"s": one_masked}, TIMES[0])
    torch.testing.assert_close(away, torch.full((16,), garbage, dtype=torch.float64))
    blind = model_of(oracle, looking.network.function, forward_looking=False)  # type: ignore[union-attr]
    away = blind({"s": oracle.states}, TIMES[0]) - blind.known({"s": oracle.states}, TIMES[0])
    torch.testing.assert_close(away, torch.full((16,), garbage, dtype=torch.float64))


def test_masks_of_any_variable_keep_the_network_on():
    """Two masked variables, one of them a single site."""

    class Pair(Target):
        def _partial_energy(self, **state):
            return torch.zeros(state["a"].shape)

    space = Space(a=Categorical(2), b=Categorical(3, shape=2))
    target = Pair(space, lambda a, b: torch.zeros(a.shape))
    model = EnergyModel(Given(lambda x, t: torch.full((3,), 7.0)), ProductPath(space), target)
    assert model.forward_looking
    x_t = {"a": torch.tensor([2, 1, 1]), "b": torch.tensor([[0, 1], [3, 1], [0, 1]])}
    on = model(x_t, TIMES[1]) - model.known(x_t, TIMES[1])
    torch.testing.assert_close(on, torch.tensor([7.0, 7.0, 0.0]), check_dtype=False)


def test_forward_looking_is_refused_where_it_is_impossible():
    ising, network = Ising(2, 0.4), Given(lambda x, t: 0.0)
    uniform = ProductPath(ising.space, {"s": Uniform(ising.space.categorical["s"])})
    assert not EnergyModel(network, uniform, ising).forward_looking
    with pytest.raises(ValueError, match=r"forward_looking needs masked paths .* Ising\(size=2, beta=0.4\)"):
        EnergyModel(network, uniform, ising, forward_looking=True)
    own = Target(ising.space, lambda s: s.sum((-2, -1)).float(), name="mine")
    assert not EnergyModel(network, ProductPath(own.space), own).forward_looking
    with pytest.raises(ValueError, match="mine on these paths does not have both; leave forward_looking out"):
        EnergyModel(network, ProductPath(own.space), own, forward_looking=True)
    assert EnergyModel(network, ProductPath(ising.space), ising).forward_looking
    assert not EnergyModel(network, ProductPath(ising.space), ising, forward_looking=False).forward_looking


def test_partial_energies_are_counted():
    oracle = TinyIsing()
    model = model_of(oracle, lambda x, t: torch.zeros(81))
    oracle.target.energy_calls = 0
    model({"s": partial_states()}, TIMES[0])
    assert oracle.target.energy_calls == 81


# ---------------------------------------------------------------------- units


def line_model(function=lambda x, t: torch.zeros(x["x"].shape[:-1], dtype=torch.float64)):
    space = Space(x=Real(1))
    return EnergyModel(Given(function), ProductPath(space), Target(space, lambda x: x[..., 0])).double()


def line(n):
    return {"x": torch.linspace(-1, 1, n, dtype=torch.float64)[:, None]}, torch.full((n,), 0.5, dtype=torch.float64)


def test_calibration_gives_the_network_a_residual_of_unit_size():
    model = line_model()
    x_t, t = line(101)
    residual = 40.0 * torch.randn(101, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 300.0
    residual[:3] = torch.tensor([math.inf, math.nan, math.inf])
    target = residual + model.known(x_t, t)
    model.calibrate(x_t, t, target)
    finite = residual[3:]
    assert float(model.offset) == pytest.approx(float(finite.median()))
    assert float(model.scale) == pytest.approx(float((finite - finite.median()).abs().mean()))
    assert 25 < float(model.scale) < 45
    torch.testing.assert_close(model(x_t, t), model.known(x_t, t) + model.offset)  # an untrained network is zero
    ones = line_model(lambda x, t: torch.ones(101, dtype=torch.float64))
    ones.calibrate(x_t, t, target)
    torch.testing.assert_close(ones(x_t, t), ones.known(x_t, t) + model.offset + model.scale)


def test_calibration_never_magnifies_and_needs_two_estimates():
    model = line_model()
    x_t, t = line(5)
    for target in (torch.full((5,), math.inf), torch.tensor([math.inf, 3.0, math.nan, -math.inf, math.inf])):
        model.calibrate(x_t, t, target.double())
        assert (float(model.offset), float(model.scale)) == (0.0, 1.0)
    model.calibrate(x_t, t, model.known(x_t, t) + 7 + 1e-3 * torch.arange(5))
    assert float(model.offset) == pytest.approx(7.002)
    assert float(model.scale) == 1.0


def test_units_are_saved_with_the_model():
    model, other = line_model(), line_model()
    x_t, t = line(50)
    model.calibrate(x_t, t, torch.linspace(-90, 50, 50, dtype=torch.float64))
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x_t, t), model(x_t, t))
    assert float(other.scale) > 1


def test_another_network_may_take_the_place_of_the_trained_one():
    model = line_model(lambda x, t: torch.ones(4, dtype=torch.float64))
    model.offset.fill_(5.0)
    model.scale.fill_(2.0)
    x_t, t = line(4)
    average = Given(lambda x, t: torch.full((4,), 10.0, dtype=torch.float64))
    torch.testing.assert_close(model(x_t, t) - model.known(x_t, t), torch.full((4,), 7.0, dtype=torch.float64))
    found = model(x_t, t, network=average) - model.known(x_t, t)
    torch.testing.assert_close(found, torch.full((4,), 25.0, dtype=torch.float64))


# ---------------------------------------------------------------------- noised energy matching


def test_loss_is_the_squared_error_in_units_of_the_scale():
    model = line_model(lambda x, t: 0.1 * x["x"][..., 0])
    model.offset.fill_(3.0)
    model.scale.fill_(4.0)
    x_t, t = line(6)
    target = torch.arange(6, dtype=torch.float64)
    expected = (model.known(x_t, t) + 3 + 4 * 0.1 * x_t["x"][:, 0] - target).square().mean() / 16
    torch.testing.assert_close(model.loss(x_t, t, target), expected)


def test_infinite_estimates_are_left_out_and_large_ones_are_cut():
    model = line_model()
    x_t, t = line(6)
    target = torch.tensor([1.0, 50.0, math.inf, 2.0, math.inf, 3.0], dtype=torch.float64)
    kept = torch.isfinite(target)
    without = model.loss({"x": x_t["x"][kept]}, t[kept], target[kept])
    found = model.loss(x_t, t, target)
    torch.testing.assert_close(found, without)
    cut = torch.tensor([1.0, 10.0, 10.0, 2.0, 10.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(model.loss(x_t, t, target, clip=10.0), model.loss(x_t, t, cut))
    torch.testing.assert_close(model.loss(x_t, t, target, clip=60.0), model.loss(x_t, t, target.clamp(max=60.0)))
    found.backward()
    (gradient,) = (p.grad for p in model.parameters())
    expected = 2 * (model.known(x_t, t) - target)[kept].mean()
    torch.testing.assert_close(gradient, expected)


def test_states_about_which_nothing_is_said_are_left_out_whatever_the_cut():
    model, (x_t, t) = line_model(), line(3)
    target = torch.tensor([1.0, math.nan, 3.0], dtype=torch.float64)
    said = ~target.isnan()
    for clip in (None, 10.0):
        expected = model.loss({"x": x_t["x"][said]}, t[said], target[said], clip=clip)
        torch.testing.assert_close(model.loss(x_t, t, target, clip=clip), expected)


def test_a_batch_without_any_finite_estimate_costs_nothing():
    model = line_model()
    x_t, t = line(3)
    loss = model.loss(x_t, t, torch.full((3,), math.inf, dtype=torch.float64))
    loss.backward()
    assert float(loss.detach()) == 0
    assert [float(p.grad) for p in model.parameters() if p.grad is not None] == [0.0]


def test_gradients_go_into_the_network_alone():
    """Neither the units nor the known terms are trained."""
    oracle = TinyIsing()
    model = model_of(oracle, lambda x, t: torch.zeros(81, dtype=torch.float64))
    assert [name for name, _ in model.named_parameters()] == ["network.constant"]
    line_, (x_t, t) = line_model(), line(4)
    assert not line_.known(x_t, t).requires_grad


def test_the_gradient_with_respect_to_the_state_is_that_of_all_terms():
    """What a sampler that follows −∇E^φ needs; here the network is flat and the reference law is all there is."""
    model, (x_t, t) = line_model(), line(4)
    x = x_t["x"].requires_grad_()
    (found,) = torch.autograd.grad(model({"x": x}, t).sum(), x)
    step = 1e-6
    ends = [model({"x": x.detach() + sign * step}, t) for sign in (1, -1)]
    torch.testing.assert_close(found, (ends[0] - ends[1]).detach()[:, None] / (2 * step), rtol=1e-6, atol=1e-6)
    assert float(found.abs().min()) > 0


def test_matching_is_minimised_by_the_mean_of_the_estimates():
    """One free number for each of five states: the gradient vanishes at the mean of Ê − known, in the model's units."""
    x_t, t = line(5)
    model = line_model()
    generator = torch.Generator().manual_seed(0)
    estimates = 30 * torch.randn(40, 5, generator=generator, dtype=torch.float64) + 100 * x_t["x"][:, 0]
    model.calibrate({"x": x_t["x"].expand(40, 5, 1)}, t.expand(40, 5), estimates)
    residual = estimates.mean(0) - model.known(x_t, t)
    values = ((residual - model.offset) / model.scale).requires_grad_()
    free = line_model(lambda x, t: values.expand(40, 5))
    free.load_state_dict(model.state_dict())
    repeated = {"x": x_t["x"].expand(40, 5, 1)}
    (at_mean,) = torch.autograd.grad(free.loss(repeated, t.expand(40, 5), estimates), values)
    assert float(at_mean.abs().max()) < 1e-12
    best = float(free.loss(repeated, t.expand(40, 5), estimates).detach())
    with torch.no_grad():
        for i in range(5):
            for step in (0.1, -0.1):
                values[i] += step
                assert float(free.loss(repeated, t.expand(40, 5), estimates)) > best
                values[i] -= step
    torch.testing.assert_close(free(x_t, t)[0], estimates.mean(0))
