"""Pyro and NumPyro models as targets; each part is skipped where its package is missing."""

import importlib
import sys

import pytest
import torch

import egm
from egm.adapters import from_numpyro, from_pyro
from support.model_cases import Y, log_joint, numpyro_model, program, pyro_model

KINDS = ("pyro", "numpyro")
pytestmark = pytest.mark.adapters


def make(kind: str, **options):
    program(kind)
    if kind == "pyro":
        return from_pyro(pyro_model, torch.tensor(Y), **options)
    return from_numpyro(numpyro_model, importlib.import_module("jax.numpy").array(Y), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_sites_become_variables(kind):
    space = make(kind).space
    assert set(space) == {"w", "s", "u", "m", "b", "z"}
    shapes = {name: variable.shape for name, variable in space.variables.items()}
    assert shapes == {"w": (3,), "s": (), "u": (), "m": (2,), "b": (), "z": (4,)}
    assert {name: v.constraint for name, v in space.real.items()} == {
        "w": "simplex",
        "s": "positive",
        "u": (-1.0, 3.0),
        "m": None,
    }
    assert {name: v.n for name, v in space.categorical.items()} == {"b": 2, "z": 3}
    m = space.real["m"]  # the prior is N(1, 2²)
    assert isinstance(m.loc, float)
    assert isinstance(m.scale, float)
    assert abs(m.loc - 1) < 0.6
    assert 1.5 < m.scale < 2.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(24,), (2, 3, 4), ()])
def test_the_energy_is_minus_the_joint_log_density(kind, shape):
    target = make(kind)
    n = max(1, torch.Size(shape).numel())
    state = target.space.reference_sample(n, generator=torch.Generator().manual_seed(0))
    state = {k: x.reshape((*shape, *x.shape[1:])) for k, x in state.items()}
    torch.testing.assert_close(target.energy(**state), -log_joint(**state), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_and_the_check_finds_no_problem(kind):
    target = make(kind)
    by_hand = egm.Target(target.space, lambda **state: -log_joint(**state))
    latent = target.space.to_latent(target.space.reference_sample(16, generator=torch.Generator().manual_seed(1)))
    (_, ours), (_, theirs) = (t.latent_energy_and_gradient(latent) for t in (target, by_hand))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    found = egm.check(target)
    assert found.ok, str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_sampler_finds_the_evidence(kind):
    """x ~ N(0, 1), y | x ~ N(x, 1): the evidence of y = 1 is N(1; 0, 2)."""
    ppl, d = program(kind)

    def model(y):
        x = ppl.sample("x", d.Normal(0.0, 1.0))
        ppl.sample("y", d.Normal(x, 1.0), obs=y)

    target = from_pyro(model, torch.tensor(1.0)) if kind == "pyro" else from_numpyro(model, 1.0)
    assert repr(target) == f"from_{kind}(model)"
    sampler = egm.fit(target, steps=60, network="MLP(width=16)", batch_size=64, refresh=128, seed=0, progress=False)
    draws = sampler.sample(4000, seed=1)
    exact = float(torch.distributions.Normal(0.0, 2**0.5).log_prob(torch.tensor(1.0)))
    assert abs(draws.log_z - exact) < 5 * draws.log_z_stderr
    assert draws.log_z_stderr < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_other_supports_are_transformed_with_their_jacobian(kind):
    """Truncated below at 2: x = 2 + exp(y) with density p(x) e^y."""
    ppl, d = program(kind)

    def model():
        ppl.sample("x", d.Pareto(2.0, 3.0))

    target = from_pyro(model) if kind == "pyro" else from_numpyro(model)
    assert target.space.real["x"].constraint is None
    y = torch.linspace(-1, 1, 5)
    x = target.values(x=y)["x"]
    torch.testing.assert_close(x, 2 + y.exp())
    expected = -(torch.distributions.Pareto(2.0, 3.0).log_prob(x) + y)
    torch.testing.assert_close(target.energy(x=y), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_model(kind):
    target = make(kind)
    state = target.space.reference_sample(5, generator=torch.Generator().manual_seed(0))
    values = target.values(**state)
    assert values["w"].shape == (5, 3)
    torch.testing.assert_close(values["w"], state["w"])
    assert values["b"].tolist() == state["b"].tolist()
    assert values["z"].shape == (5, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_loc_and_scale_can_be_given(kind):
    space = make(kind, loc={"m": 3.0}, scale={"m": 0.5}).space
    assert (space.real["m"].loc, space.real["m"].scale) == (3.0, 0.5)
    with pytest.raises(ValueError, match=r"\['z'\] are no continuous sites of .*its continuous sites are"):
        make(kind, loc={"z": 3.0})


def test_pyro_models_that_cannot_run_at_once_are_told_how():
    pyro, d = program("pyro")

    def model():
        x = pyro.sample("x", d.Normal(0.0, 1.0))
        pyro.sample("y", d.Normal(0.0, 1.0 if x.item() > 0 else 2.0), obs=torch.tensor(0.0))

    with pytest.raises(egm.EnergyError, match=r"cannot run for many states at once .*batched=False"):
        from_pyro(model).energy(x=torch.zeros(3))
    slow = from_pyro(model, batched=False)
    x = torch.tensor([-1.0, 1.0])
    normal = torch.distributions.Normal(0.0, torch.tensor([2.0, 1.0]))
    expected = -torch.distributions.Normal(0.0, 1.0).log_prob(x) - normal.log_prob(torch.tensor(0.0))
    torch.testing.assert_close(slow.energy(x=x), expected)


def test_pyro_sites_that_no_space_has_are_refused():
    pyro, d = program("pyro")

    with pytest.raises(ValueError, match=r"'n' .Poisson. has infinitely many symbols"):
        from_pyro(lambda: pyro.sample("n", d.Poisson(2.0)))
    with pytest.raises(ValueError, match="'h' holds arrays of symbols"):
        from_pyro(lambda: pyro.sample("h", d.OneHotCategorical(torch.ones(3))))
    with pytest.raises(ValueError, match="has no latent site"):
        from_pyro(lambda: pyro.sample("y", d.Normal(0.0, 1.0), obs=torch.tensor(0.0)))

    def subsampled():
        with pyro.plate("part", 10, subsample_size=3):
            pyro.sample("x", d.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="'part' takes random subsamples"):
        from_pyro(subsampled)


@pytest.mark.parametrize(
    ("kind", "named", "adapter"), [("pyro", "pyro-ppl", from_pyro), ("numpyro", "numpyro", from_numpyro)]
)
def test_a_missing_package_is_reported_with_the_command_that_installs_it(kind, named, adapter, monkeypatch):
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(ImportError, match=rf"from_{kind} needs {named}: pip install 'egm\[{kind}\]'"):
        adapter(pyro_model)


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_that_depend_on_other_sites_are_refused(kind):
    ppl, d = program(kind)
    adapter = from_pyro if kind == "pyro" else from_numpyro

    def below_another():
        a = ppl.sample("a", d.Uniform(0.0, 1.0))
        ppl.sample("b", d.Uniform(0.0, a))

    def trials():
        n = ppl.sample("n", d.Bernoulli(0.5))
        ppl.sample("k", d.Binomial(n + (1.0 if kind == "pyro" else 1), 0.5))

    with pytest.raises(ValueError, match=r"bounds of the site 'b' depend on other sites; .*a \* u"):
        adapter(below_another)
    with pytest.raises(ValueError, match="bounds of the site 'k' depend on other sites"):
        adapter(trials)
