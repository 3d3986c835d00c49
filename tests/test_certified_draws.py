"""What the draws of a sampler certify, and what they cannot: collapsed samplers, missing weights, fresh evaluations."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import egm
from egm.paths import ProductPath
from egm.processes import Diffusion, Flow, Jump
from egm.sampler import Sampler
from egm.simulation.denoiser_error import DenoiserError
from egm.targets import Target
from egm.util.seeds import derive_seed
from support.marginals import TinyIsing
from test_sampler import sampler_of as oracle_sampler

SPACE = egm.Space(x=egm.Real(1))
MEANS, WIDTH = (-2.0, 2.0), 0.4


class TwoWells(Target):
    """Two equal Gaussian modes; log Z = 0."""

    def __init__(self, *, exact):
        super().__init__(SPACE, self.mixture, name="two wells")
        self.reference_kind = "exact" if exact else None

    @staticmethod
    def mixture(x):
        square = -0.5 * ((x - torch.tensor(MEANS, dtype=x.dtype)) / WIDTH).square()
        return -torch.logsumexp(square, -1) + math.log(2 * WIDTH * math.sqrt(2 * math.pi))

    def _log_z(self):
        return 0.0

    def _exact_sample(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        side = torch.tensor(MEANS)[torch.randint(2, (n, 1), generator=generator)]
        return {"x": side + WIDTH * torch.randn(n, 1, generator=generator)}


class Modes(nn.Module):
    """The exact denoiser of some of the wells."""

    def __init__(self, means):
        super().__init__()
        self.means = nn.Parameter(torch.tensor(means), requires_grad=False)

    def forward(self, state, t):
        x, t = state["x"], t[:, None]
        total = (t * WIDTH) ** 2 + (1 - t) ** 2
        mixing = torch.softmax(-0.5 * (x - t * self.means).square() / total, -1)
        each = (t * WIDTH**2 * x + (1 - t) ** 2 * self.means) / total
        return {"x": (mixing * each).sum(-1, keepdim=True)}


def sampler_of(means, *, exact=True, process: Any = Diffusion):
    target, path = TwoWells(exact=exact), ProductPath(SPACE)
    error = DenoiserError(path)
    network = Modes(means)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):  # as training would
        side = torch.tensor(means)[torch.randint(len(means), (256, 1), generator=generator)]
        x_1 = {"x": side + WIDTH * torch.randn(256, 1, generator=generator)}
        t = torch.rand(256, generator=generator) * 0.999
        error.update(x_1, network(path.sample(x_1, t, generator=generator), t), t)
    processes = {"x": process(path["x"])}
    return Sampler(space=SPACE, path=path, processes=processes, network=network, error=error, target=target, steps=100)


def test_an_exact_denoiser_has_nearly_even_weights_and_no_problem():
    draws = sampler_of(MEANS).sample(4000, seed=1)
    assert draws.ess > 0.8
    assert abs(draws.log_z) < 4 * draws.log_z_stderr
    assert draws.eubo is not None
    assert draws.elbo < 0 < draws.eubo
    assert draws.summary().splitlines()[-1] == "no problem detected"
    assert draws.energy_calls == 4000


def test_a_collapsed_sampler_is_called_unreliable_where_exact_draws_exist():
    """One of two modes is missing: ESS and k̂ see nothing, log Z is off by log 2, and the upper bound shows it."""
    draws = sampler_of(MEANS[:1]).sample(4000, seed=1)
    assert draws.ess > 0.8
    assert draws.log_z == pytest.approx(-math.log(2), abs=0.05)
    assert draws.pareto_k < 0.7
    assert draws.eubo is not None
    assert draws.eubo > 5
    last = draws.summary().splitlines()[-1]
    assert last.startswith("unreliable, because")
    assert "EUBO" in last


def test_without_exact_draws_a_collapse_cannot_be_seen_and_the_summary_says_so():
    draws = sampler_of(MEANS[:1], exact=False).sample(4000, seed=1)
    assert draws.eubo is None
    lines = draws.summary().splitlines()
    assert lines[-1] == "no problem detected"
    assert any("cannot be detected" in line for line in lines)


def test_a_flow_has_weights_but_no_upper_bound():
    draws = sampler_of(MEANS, process=Flow).sample(1000, seed=1)
    assert abs(draws.log_z) < 4 * draws.log_z_stderr
    assert draws.eubo is None


def test_a_continuous_jump_has_none_and_asking_says_why():
    path = ProductPath(SPACE)
    target = TwoWells(exact=True)

    class Even(nn.Module):
        def __init__(self):
            super().__init__()
            self.nothing = nn.Parameter(torch.zeros(()))

        def forward(self, state, t):
            return {"x": torch.zeros(*state["x"].shape, 8) + self.nothing}

    jump = {"x": Jump(path["x"], bins=8)}  # type: ignore[arg-type]
    sampler = Sampler(
        space=SPACE, path=path, processes=jump, network=Even(), error=DenoiserError(path), target=target, steps=10,
        t_min=0.01,
    )  # fmt: skip
    calls = target.energy_calls
    draws = sampler.sample(50, seed=1)
    assert draws.log_weights is None
    assert target.energy_calls == calls
    with pytest.raises(ValueError, match=r"ess needs importance weights.*Jump of 'x' has no step density"):
        _ = draws.ess
    assert draws.summary().splitlines()[-1].startswith("unreliable, because there are no weights: Jump of 'x'")


def test_weights_can_be_left_out():
    sampler = sampler_of(MEANS)
    calls = sampler.target.energy_calls  # type: ignore[union-attr]
    draws = sampler.sample(50, seed=1, weigh=False)
    assert draws.log_weights is None
    assert sampler.target.energy_calls == calls  # type: ignore[union-attr]
    assert torch.equal(draws["x"], sampler.sample(50, seed=1)["x"])


def test_a_sampler_without_its_target_says_so():
    sampler = sampler_of(MEANS)
    sampler.target = None
    with pytest.raises(ValueError, match="loaded without its target"):
        _ = sampler.sample(50, seed=1).ess


def about_eubo(draws):
    return [problem for problem in draws.problems() if "EUBO" in problem]


def test_the_upper_bound_belongs_to_the_steps_that_the_draws_took():
    """Few steps have a higher bound, which would look like a lost mode next to the weights of many."""
    sampler, bounds = sampler_of(MEANS), {}
    for steps in (8, None):
        draws = sampler.sample(4000, seed=7, steps=steps)
        bounds[steps] = sampler.eubo(seed=derive_seed(7, 1), steps=steps)
        assert (draws.eubo, draws.eubo_stderr) == bounds[steps]
        assert about_eubo(draws) == []
    assert bounds[8][0] > bounds[None][0] + 0.1
    draws = sampler.sample(4000, seed=7)
    mixed_up = egm.Draws(SPACE, draws.state, log_weights=draws.log_weights, eubo=lambda: bounds[8])
    assert about_eubo(mixed_up) != []


def test_the_upper_bound_of_masked_sites_in_closed_form():
    """An exact denoiser reveals one site after the other exactly; all at once, with even odds, it misses KL(p‖q)."""
    oracle = TinyIsing(beta=0.5)
    sampler = oracle_sampler(oracle, target=oracle.target)
    energy = oracle.target.energy(s=oracle.states).double()
    law = torch.softmax(-energy, 0)
    log_z = float(torch.logsumexp(-energy, 0))
    one_by_one = sampler.sample(200, seed=1)
    assert one_by_one.eubo == pytest.approx(log_z, abs=1e-4)
    assert one_by_one.eubo_stderr == pytest.approx(0.0, abs=1e-4)
    at_once, pairs = sampler.sample(200, seed=1, steps=1), sampler.sample(200, seed=1, steps=2)
    assert at_once.eubo is not None
    assert at_once.eubo_stderr is not None
    assert pairs.eubo is not None
    expected = float((law * -energy).sum()) + math.log(16)
    assert abs(at_once.eubo - expected) < 4 * at_once.eubo_stderr < 0.2
    assert log_z + 0.1 < pairs.eubo < at_once.eubo - 0.1


def test_evaluations_hold_the_certificate():
    record = egm.evaluate(sampler_of(MEANS), n=200, repeats=3, floor_pairs=10, metrics=["e_w1"])
    assert record["ess"] > 0.7
    assert abs(record["log_z"]) < 4 * record["log_z_stderr"]
    assert record["elbo"] < record["eubo"]
    assert set(record["resampled"]) == {"e_w1"}
    assert record["resampled"]["e_w1"]["floor"] == record["metrics"]["e_w1"]["floor"]
    assert record["resampled"]["e_w1"]["mean"] != record["metrics"]["e_w1"]["mean"]
    one_sided = egm.evaluate(sampler_of(MEANS[:1]), n=200, repeats=3, floor_pairs=10, metrics=["x_w2"])
    assert one_sided["metrics"]["x_w2"]["mean"] > 2
