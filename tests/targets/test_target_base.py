"""`Target` for users: counting, both signs, latent energies, and a check that explains what is wrong."""

import math

import pytest
import torch
from torch import Tensor

from egm import Categorical, EnergyError, Real, Space, Target
from egm.targets import Ising
from egm.targets.support import Constants
from support.reference_cases import ByMCMC

SPACE = Space(v=Real(2, scale=2.0), h=Categorical(3, shape=4))


def good_energy(v: Tensor, h: Tensor) -> Tensor:
    return 0.5 * v.square().sum(-1) + h.sum(-1).to(v)


def test_a_good_energy_passes_and_every_state_counts():
    target = Target(SPACE, good_energy)
    target.check()
    assert target.energy_calls == 24 + 24 + 1 + 24 + 1
    assert target.score_calls == 0
    before = target.energy_calls
    latent = SPACE.to_latent(SPACE.reference_sample(5))
    target.latent_energy_and_gradient(latent)
    assert (target.energy_calls - before, target.score_calls) == (5, 5)
    assert repr(target) == "Target(good_energy)"
    assert (target.log_z, target.reference_kind, target.has_partial_energy) == (None, None, False)


def test_partial_energies_count_as_calls():
    target = Ising(3, 0.4)
    assert target.has_partial_energy
    target.partial_energy(s=torch.full((5, 2, 3, 3), 2))
    assert (target.energy_calls, target.score_calls) == (10, 0)


@pytest.mark.parametrize("batch", [(), (5,), (2, 3)])
def test_variables_are_observed_flat_by_default(batch):
    space = Space(v=Real((2, 3)), w=Real(()), h=Categorical(3, shape=4))
    target = Target(space, lambda v, w, h: w)
    v = torch.arange(6.0, dtype=torch.float64).reshape(2, 3).expand(*batch, 2, 3)
    state = {"v": v, "w": torch.full(batch, 7.0), "h": torch.arange(4).expand(*batch, 4)}
    expected = {"v": v.flatten(-2), "w": torch.tensor([7.0]), "h": torch.arange(4.0)}
    observed = target.observables(**state)
    assert list(observed) == ["v", "w", "h"]
    for name, value in observed.items():
        # floats keep their dtype, symbols take the default one
        torch.testing.assert_close(value, expected[name].expand(*batch, -1))


def test_from_log_prob_has_the_other_sign():
    state = SPACE.reference_sample(3)
    target = Target.from_log_prob(SPACE, lambda v, h: -good_energy(v, h))
    torch.testing.assert_close(target.energy(**state), good_energy(**state))


def test_infinite_walls_are_legal():
    Target(SPACE, lambda v, h: torch.where(v[..., 0] > 0, good_energy(v, h), math.inf)).check()


def stateful():
    count = [0.0]

    def energy(v, h):
        count[0] += 1
        return good_energy(v, h) + count[0]

    return energy


@pytest.mark.parametrize(
    ("energy", "message"),
    [
        (
            lambda v, h: good_energy(v, h).mean(),
            r"must return shape \(24,\), got \(\); sum over the variables' own axes",
        ),
        (lambda v, h: v.square().sum() + 0 * good_energy(v, h), "changes with the batch around it"),
        (lambda v, h: good_energy(v, h) - good_energy(v, h).mean(), "changes with the batch around it"),
        (lambda v, h: good_energy(v, h).flip(0) if v.ndim == 2 else good_energy(v, h), "batch around it"),
        (lambda v, h: v.square(), r"must return shape \(24,\), got \(24, 2\)"),
        (stateful(), "two different answers for the same states"),
        (lambda v, h: h.sum(-1), "floating-point torch.Tensor, got torch.int64"),
        (lambda v, h: 3.0, "floating-point torch.Tensor, got float"),
        (lambda v: v.sum(-1), r"exactly the variables \['v', 'h'\]"),
        (lambda v, k: v.sum(-1), r"exactly the variables \['v', 'h'\]"),
        (lambda v, h, k: v.sum(-1), r"exactly the variables \['v', 'h'\]"),
        (lambda v, h: good_energy(v, h).to("meta"), "came back on meta; create constants on the device of the state"),
        (
            lambda v, h: good_energy(v, h) * math.inf,
            r"\+inf \(zero density\) on every one of 24 draws, for example at v=",
        ),
        (lambda v, h: -good_energy(v, h) * math.inf, "the energy is -inf at the state v="),
        (lambda v, h: torch.where(v[..., 0] > 1, math.nan, good_energy(v, h)), "the energy is nan at the state v="),
    ],
)
def test_a_bad_energy_is_explained(energy, message):
    with pytest.raises(EnergyError, match=message):
        Target(SPACE, energy).check()


def test_the_offending_state_is_shown():
    target = Target(Space(x=Real(())), lambda x: torch.where(x > 0, math.nan, x))
    with pytest.raises(EnergyError) as caught:
        target.check()
    shown = float(str(caught.value).split("x=")[1].split(";")[0])
    assert shown > 0


def boom(v, h):
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("energy", "error", "message"),
    [
        (boom, RuntimeError, "^boom"),
        (lambda v, h: len(3), TypeError, r"^object of type .int. has no len"),  # type: ignore[arg-type]
        (lambda v, h: good_energy(v), TypeError, r"^good_energy\(\) missing 1 required positional argument"),  # type: ignore[call-arg]
    ],
)
def test_errors_inside_a_users_energy_are_not_hidden(energy, error, message):
    with pytest.raises(error, match=message):
        Target(SPACE, energy).check()


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match=r"space must be an egm\.Space"):
        Target(None, good_energy)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"energy must be a function of the variables \['v', 'h'\], got float"):
        Target(SPACE, 3.0)  # type: ignore[arg-type]
    target = Target(SPACE, good_energy)
    with pytest.raises(NotImplementedError, match="no exact sampler"):
        target.exact_sample(10)
    with pytest.raises(NotImplementedError, match="only lattice models"):
        target.partial_energy(**SPACE.reference_sample(2))
    with pytest.raises(ValueError, match="needs the variables"):
        target.energy(v=torch.zeros(3, 2))
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        Ising(3, 0.4).exact_sample(0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'betta'"):
        Ising(3, 0.4, betta=1)  # type: ignore[call-arg]


def test_latent_energy_is_a_density_in_z():
    """exp(−latent energy) integrates to the same Z as exp(−E) does in x."""
    space = Space(x=Real((), loc=1.0, scale=2.0, constraint="positive"))
    target = Target(space, lambda x: 3 * x - torch.log(x))  # ∫ x e^{−3x} dx = 1/9
    z = torch.linspace(-8, 4, 20_001, dtype=torch.float64)
    total = torch.trapezoid(torch.exp(-target.latent_energy({"x": z})), z)
    assert float(total) == pytest.approx(1 / 9, rel=1e-6)
    energy, gradient = target.latent_energy_and_gradient({"x": z})
    slope = torch.gradient(energy, spacing=(z,))[0]
    torch.testing.assert_close(gradient["x"][1:-1], slope[1:-1], rtol=1e-4, atol=1e-5)


def test_gradients_are_projected_on_centred_variables():
    space = Space(x=Real((3, 2), centered=True))
    weights = torch.arange(6.0).reshape(3, 2)
    target = Target(space, lambda x: (weights * x).sum((-1, -2)))
    _, gradient = target.latent_energy_and_gradient(space.reference_sample(1))
    torch.testing.assert_close(gradient["x"][0], weights - weights.mean(0))


def test_symbols_alone_have_an_energy_and_no_gradient():
    target = Target(Space(h=Categorical(3, shape=2)), lambda h: h.sum(-1).float())
    energy, gradient = target.latent_energy_and_gradient({"h": torch.tensor([[0, 1], [2, 2]])})
    assert (energy.tolist(), gradient) == ([1.0, 4.0], {})


def test_the_gradient_of_an_ignored_variable_is_zero():
    space = Space(x=Real(2), y=Real(3), h=Categorical(2))
    latent = {"x": torch.ones(4, 2), "y": torch.ones(4, 3), "h": torch.tensor([0, 1, 1, 0])}
    energy, gradient = Target(space, lambda x, y, h: 3 * x.sum(-1) + h).latent_energy_and_gradient(latent)
    assert energy.tolist() == [6.0, 7.0, 7.0, 6.0]
    torch.testing.assert_close(gradient, {"x": torch.full((4, 2), 3.0), "y": torch.zeros(4, 3)})
    detached = Target(space, lambda x, y, h: x.detach().sum(-1))
    with pytest.raises(EnergyError, match="without a gradient"):
        detached.latent_energy_and_gradient(latent)


def test_constants_follow_the_state():
    constants = Constants(a=[0.1], k=[1, 2])
    double, single = torch.zeros(1, dtype=torch.float64), torch.zeros(1)
    assert constants.like(double).a.item() == 0.1  # not 0.1 rounded to single precision first
    assert constants.like(single).a.dtype == torch.float32
    assert constants.like(single).k.dtype == torch.int64
    assert constants.like(single) is constants.like(single)
    assert constants.like(torch.zeros(1, dtype=torch.int64)).a.dtype == torch.get_default_dtype()


def test_scalar_variables_are_checked_too():
    target = Target(Space(x=Real(()), h=Categorical(2)), lambda x, h: 0.5 * (x - h).square())
    target.check()
    assert target.energy(x=torch.tensor(0.5), h=torch.tensor(1)).item() == pytest.approx(0.125)


def test_mcmc_references_are_made_once_and_cost_the_target_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("EGM_CACHE_DIR", str(tmp_path))
    target = ByMCMC()
    draws = target.exact_sample(50, seed=3)
    assert draws["x"].shape == (50, 2)
    assert len(draws["x"].unique(dim=0)) > 30
    assert (target.energy_calls, target.score_calls) == (0, 0)
    assert target.reference.diagnostics["energy_calls"] > 0
    again = ByMCMC()
    monkeypatch.setattr(again, "latent_energy_and_gradient", None)  # any new run would fail
    torch.testing.assert_close(again.exact_sample(50, seed=3)["x"], draws["x"])
    assert not torch.equal(again.exact_sample(50, seed=4)["x"], draws["x"])
    with pytest.raises(ValueError, match="1000 draws of this reference pool, got 1001"):
        target.exact_sample(1001)


def test_a_target_without_a_plan_says_so():
    class Planless(Target):
        reference_kind = "mcmc"

    with pytest.raises(NotImplementedError, match="no plan for an MCMC reference"):
        Planless(SPACE, good_energy).exact_sample(3)


def test_modules_and_builtins_are_energies_too():
    class Half(torch.nn.Module):
        def forward(self, x):
            return 0.5 * x.square()

    Target(Space(x=Real(())), Half()).check()
    with pytest.raises(EnergyError, match=r"exactly the variables \['y'\]"):
        Target(Space(y=Real(())), Half()).check()
    Target(Space(input=Real(())), torch.square).check()
