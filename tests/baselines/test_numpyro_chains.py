"""NumPyro's samplers through torch energies: the right law, calls counted one by one, errors that say what to do."""

import math
import sys

import numpy as np
import pytest
import torch

import egm
from egm.baselines import numpyro_chains
from egm.baselines.numpyro_bridge import Bridge, Layout
from egm.mcmc.diagnostics import effective_sample_size, r_hat
from support.conditions import package
from support.mcmc_laws import Mixture
from support.stats import z_limit

pytestmark = pytest.mark.adapters


@pytest.fixture
def numpyro():
    """Skips where NumPyro is missing."""
    return package("numpyro")


class Odd:
    """Unequal numbers of symbols, a centred variable and a positive one: p(a) ∝ exp(−table), given a

    x_1 − x_2 ~ N(d[a_1], 1) (x centred),    w ~ Gamma(2 + a_2, 2).
    """

    table = torch.tensor([[0.3, 1.0, 0.0], [1.2, 0.1, 0.7]])
    apart = torch.tensor([-1.0, 1.5])

    def __init__(self) -> None:
        self.seen = 0
        space = egm.Space(
            a=egm.Categorical([2, 3]),
            x=egm.Real((2, 1), centered=True, scale=1.5),
            w=egm.Real(1, constraint="positive"),
        )
        self.target = egm.Target(space, self.energy)

    def energy(self, a, x, w):
        self.seen += a[..., 0].numel()
        w, shape = w[..., 0], 2.0 + a[..., 1]
        gamma = 2 * w - (shape - 1) * w.log() + torch.lgamma(shape) - shape * math.log(2)
        square = 0.5 * (x[..., 0, 0] - x[..., 1, 0] - self.apart[a[..., 0]]).square()
        return self.table[a[..., 0], a[..., 1]] + gamma + square

    def features(self, a, x, w):
        pairs = [(a[..., 0] == i) & (a[..., 1] == j) for i in range(2) for j in range(3)]
        distance = x[..., 0, 0] - x[..., 1, 0]
        reals = [distance, distance.square(), w[..., 0], distance * a[..., 0], w[..., 0] * a[..., 1]]
        return torch.stack([*(p.double() for p in pairs), *(r.double() for r in reals)], -1)

    def exact(self):
        p = torch.softmax(-self.table.flatten(), 0).reshape(2, 3).double()
        a1, a2, d = p.sum(1), p.sum(0), self.apart.double()
        second, mean_w = torch.arange(3).double(), (2 + torch.arange(3).double()) / 2
        reals = [a1 @ d, a1 @ (d.square() + 1), a2 @ mean_w, a1[1] * d[1], a2 @ (second * mean_w)]
        return torch.cat([p.flatten(), torch.stack(reals)])


def assert_law(values, expected):
    """Means of chains [steps, chains, k] agree with what is expected, in standard errors by effective sample size."""
    for k, exact in enumerate(expected.tolist()):
        column = values[..., k].double()
        stderr = float(column.std()) / math.sqrt(effective_sample_size(column))
        assert abs(float(column.mean()) - exact) < z_limit(len(expected)) * stderr, k
        assert r_hat(column) < 1.05, k


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["mixed-hmc", "nuts-gibbs"])
def test_law_and_calls(numpyro, algorithm):
    del numpyro
    odd = Odd()
    chains = numpyro_chains.run(odd.target, algorithm=algorithm, chains=8, warmup=150, steps=250, seed=1)
    assert chains.state["a"].shape == (250, 8, 2)
    assert odd.target.space.check(chains.state) == (250, 8)
    values = odd.features(**chains.state)
    assert_law(values, odd.exact())
    with pytest.raises(AssertionError):  # sharp enough to tell the symbols' probabilities from equal ones
        assert_law(values[..., :6], torch.full((6,), 1 / 6))
    assert chains.energy_calls == odd.target.energy_calls == odd.seen
    assert 0 < chains.score_calls < chains.energy_calls
    assert torch.equal(chains.energy, odd.target.energy(**chains.state))
    assert 0.5 < chains.acceptance <= 1
    assert chains.report["leapfrog steps"] >= 1


@pytest.mark.slow
def test_a_number_of_calls_ends_the_run(numpyro, monkeypatch, capsys):
    del numpyro
    target = Mixture().target
    chains = numpyro_chains.run(target, chains=2, warmup=5, calls=600, seed=0)
    steps = len(chains.energy)
    assert chains.energy.shape == (steps, 2)
    assert steps > 1
    made = chains.energy_calls + chains.score_calls
    assert 600 <= made < 600 + 3 * made / (steps + 5)  # the last step is finished
    again = numpyro_chains.run(target, chains=2, warmup=5, calls=600, seed=0)
    assert all(torch.equal(again.state[name], x) for name, x in chains.state.items())
    monkeypatch.setattr(numpyro_chains, "PROGRESS_SECONDS", 0.0)
    other = numpyro_chains.run(target, chains=2, warmup=5, steps=3, seed=1, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("mixed-hmc warm-up: step 1 of 8, ")
    assert lines[-1].startswith("mixed-hmc sampling: step 8 of 8, ")
    assert not torch.equal(other.state["x"], chains.state["x"][:3])


@pytest.mark.slow
def test_what_an_energy_raises_is_raised(numpyro):
    del numpyro
    mixture, calls = Mixture(), []

    def energy(x, s):
        calls.append(1)
        if len(calls) > 30:
            raise OSError("the disk is gone")
        return mixture.energy(x, s)

    with pytest.raises(OSError, match="the disk is gone"):
        numpyro_chains.run(egm.Target(mixture.target.space, energy), chains=2, warmup=5, steps=50)


# ---------------------------------------------------------------------- without NumPyro


def test_missing_numpyro_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"mixed-hmc needs jax: pip install 'egm\[numpyro\]'"):
        numpyro_chains.run(Mixture().target, steps=1)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (egm.targets.Ising(4, 0.4), {}, "only one kind of variable; use egm.mcmc.Gibbs"),
        (egm.targets.ManyWell(), {}, "only one kind of variable; .* egm.mcmc.HMC"),
        (Mixture().target, {"steps": 10, "calls": 10}, "give steps or calls, not both"),
        (Mixture().target, {"chains": 0}, "chains must be at least 1, got 0"),
        (Mixture().target, {"calls": -1}, "calls must be at least 1, got -1"),
        (Mixture().target, {"algorithm": "gibbs"}, "algorithm must be 'mixed-hmc' or 'nuts-gibbs', got 'gibbs'"),
    ],
)
def test_bad_input_is_named(target, options, message):
    with pytest.raises(ValueError, match=message):
        numpyro_chains.run(target, **options)


def test_energies_and_gradients_of_latent_states():
    """A batch and its members agree, and the gradient is that of the energy, also off the centred subspace."""
    odd = Odd()
    bridge = Bridge(odd.target)
    rng = np.random.default_rng(0)
    arrays = [
        np.array([[0, 2], [1, 1], [1, 0]], dtype=np.int32), rng.normal(size=(3, 2, 1)), rng.normal(size=(3, 1))
    ]  # fmt: skip
    energy, gradient = bridge.energy_and_gradient(*arrays)
    np.testing.assert_allclose(bridge.energy(*arrays), energy, rtol=1e-12)
    np.testing.assert_allclose([bridge.energy(*(x[i] for x in arrays)) for i in range(3)], energy, rtol=1e-12)
    assert (odd.target.energy_calls, odd.target.score_calls) == (9, 3)
    for name, place in (("x", 1), ("w", 2)):
        for entry in np.ndindex(arrays[place].shape[1:]):
            moved = []
            for step in (1e-5, -1e-5):
                changed = [x.copy() for x in arrays]
                changed[place][:, *entry] += step
                moved.append(bridge.energy(*changed))
            np.testing.assert_allclose(gradient[name][:, *entry], (moved[0] - moved[1]) / 2e-5, rtol=1e-6, atol=1e-8)
    shifted = [arrays[0], arrays[1] + 1.0, arrays[2]]  # the centre of mass moves by one: ½·2·[(c+1)² − c²]
    centre = arrays[1].mean((1, 2))
    np.testing.assert_allclose(bridge.energy(*shifted) - energy, (centre + 1) ** 2 - centre**2, rtol=1e-9)


def test_symbols_are_put_back_in_their_places():
    layout = Layout(egm.Space(c=egm.Categorical([[2, 3], [3, 2]]), x=egm.Real(2)))
    latent = {"c": torch.tensor([[[0, 2], [1, 1]], [[1, 0], [2, 0]]]), "x": torch.tensor([[0.5, 1.0], [2.0, 3.0]])}
    sites = layout.sites(latent, dtype=np.float32)
    assert set(sites) == {"x", "c/2", "c/3"}
    assert sites["c/3"].tolist() == [[2, 1], [0, 2]]
    back = layout.state([sites, sites])
    assert torch.equal(back["c"], torch.stack([latent["c"]] * 2))
    assert torch.equal(back["x"], torch.stack([latent["x"]] * 2))
