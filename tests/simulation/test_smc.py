"""Sequential Monte Carlo along the path: the mean weight stays Z for every intermediate energy, group by group."""

import math
from typing import Any

import pytest
import torch
from test_simulated_weights import Case
from torch import nn

import egm
from egm.estimation.energy_model import EnergyModel
from egm.paths import ProductPath
from egm.processes import Flow
from egm.sampler import Sampler
from egm.simulation.course import Course
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.simulate import simulate
from egm.simulation.smc import SMC, default_kernel, resample_groups
from egm.targets import Ising, JointMoG
from egm.util.seeds import derive_seed
from support.stats import assert_mean
from support.training import as_sampler, fit

GRID = [0.0, 0.3, 0.6, 0.8, 1.0]


def odd_energy(space):
    """An intermediate energy that is nowhere near −log p_t, of any sign and size."""

    def energy(x, t):
        total = 0.8 * torch.sin(5 * t)
        for name in space:
            value = x[name].double().flatten(1)
            total = total + (torch.cos(3 * value + t[:, None]) + 0.3 * value).sum(1)
        return total

    return energy


def group_means(case, *, groups, size, threshold, seed=0, exchange=resample_groups):
    """The mean weight of each group, and how many draws were copied."""
    energy, generator, copies = odd_energy(case.path.space), torch.Generator().manual_seed(seed), []

    def between(x, log_ratio, r):
        moved, after = exchange(
            x, log_ratio, lambda x: energy(x, r.expand(len(log_ratio))), groups=groups, threshold=threshold,
            generator=generator,
        )  # fmt: skip
        copies.append(int((after != log_ratio).sum()))
        return moved, after

    drawn = simulate(
        case.predict, case.path, case.processes, groups * size,
        Course(torch.tensor(GRID, dtype=torch.float64), error=case.error), weigh=True, between=between,
        generator=generator, dtype=torch.float64,
    )  # fmt: skip
    w = (drawn.log_ratio - case.target.latent_energy(drawn.state)).exp()  # type: ignore[operator]
    return w.reshape(groups, size).mean(1), copies


@pytest.mark.parametrize("threshold", [0.7, 1.0], ids=["sometimes", "always"])
@pytest.mark.parametrize(
    ("target", "label"), [("symbols", "masked"), ("symbols", "uniform"), ("mixed", "masked"), ("line", "masked")]
)
def test_the_mean_weight_of_a_group_is_the_partition_function(target, label, threshold):
    case = Case(target, label=label)
    means, copies = group_means(case, groups=4000, size=5, threshold=threshold)
    assert_mean(means, case.z, "E[mean w]")
    assert len(copies) == len(GRID) - 2
    assert all(0 < count <= 20_000 for count in copies)
    assert (min(copies) > 19_000) == (threshold == 1.0)


def test_forgetting_the_intermediate_energy_of_the_survivors_is_caught():
    def forgetful(x, log_ratio, energy, **options):
        moved, after = resample_groups(x, log_ratio, energy, **options)
        return moved, torch.where(after == log_ratio, after, after - energy(moved))

    case = Case("symbols")
    with pytest.raises(AssertionError, match="standard errors off"):
        assert_mean(group_means(case, groups=4000, size=5, threshold=1.0, exchange=forgetful)[0], case.z)


def test_survivors_are_drawn_in_proportion_and_only_within_their_group():
    groups, size = 3000, 4
    log_g = torch.tensor([0.0, 1.0, -1.0, -math.inf], dtype=torch.float64).repeat(groups)
    x = {"x": torch.arange(groups * size)}
    moved, after = resample_groups(
        x, log_g, lambda x: torch.zeros(groups * size), groups=groups, threshold=0.99,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert torch.equal(moved["x"] // size, x["x"] // size)
    law = torch.softmax(log_g[:size], 0)
    assert_mean((moved["x"].reshape(groups, size) % size == 1).double().mean(1), float(law[1]))
    assert int((moved["x"] % size == 3).sum()) == 0
    expected = math.log((1 + math.e + 1 / math.e) / 4)
    torch.testing.assert_close(after, torch.full_like(after, expected))
    same, kept = resample_groups(
        x, log_g, lambda x: torch.zeros(groups * size), groups=groups, threshold=0.1,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert torch.equal(same["x"], x["x"])
    assert torch.equal(kept, log_g)


def test_a_group_without_any_density_is_left_alone():
    log_ratio = torch.full((4,), -math.inf, dtype=torch.float64)
    x, after = resample_groups(
        {"x": torch.arange(4)}, log_ratio, lambda x: torch.zeros(4), groups=1, threshold=1.0,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert x["x"].tolist() == [0, 1, 2, 3]
    assert torch.equal(after, log_ratio)


# ---------------------------------------------------------------------- through the sampler


@pytest.fixture(scope="module")
def poor():
    """A sampler for 4 × 4 after 20 steps of training."""
    return egm.fit(Ising(4, 0.4), steps=20, network="MLP(width=16)", batch_size=64, device="cpu", progress=False)


def test_resampling_along_the_path_helps_a_poor_sampler(poor):
    target = poor.target
    plain = poor.sample(3200, seed=1, steps=16)
    calls = target.energy_calls
    draws = poor.sample(3200, seed=1, steps=16, smc=SMC())
    assert draws.groups == 16
    assert draws.energy_calls == target.energy_calls - calls == 3200 * 16  # partial energies count
    assert draws.ess > 5 * plain.ess
    assert abs(draws.log_z - target.log_z) < 4 * draws.log_z_stderr
    assert draws.log_z_stderr < 0.3
    again = poor.sample(3200, seed=1, steps=16, smc=SMC(), batch_size=400)
    assert abs(again.log_z - target.log_z) < 4 * again.log_z_stderr


def test_the_upper_bound_is_that_of_the_common_grid(poor):
    """Draws that are exchanged step together; site by site the same network has another bound."""
    draws = poor.sample(320, seed=1, steps=4, smc=SMC())
    on_grid = poor.eubo(seed=derive_seed(1, 1), steps=4, exchanged=True)
    assert (draws.eubo, draws.eubo_stderr) == on_grid
    assert on_grid != poor.eubo(seed=derive_seed(1, 1), steps=4)


def test_moves_leave_the_weights_and_improve_the_states(poor):
    options: dict[str, Any] = {"seed": 1, "steps": 16}
    still, moved = poor.sample(1600, **options, smc=SMC()), poor.sample(1600, **options, smc=SMC(moves=20))
    assert still.log_z == moved.log_z
    assert not torch.equal(still["s"], moved["s"])
    exact = poor.target.energy(**poor.target.exact_sample(20_000, seed=5)).double()
    mean, stderr = moved.expect(lambda s: poor.target.energy(s=s))
    assert abs(float(mean) - float(exact.mean())) < 4 * math.hypot(float(stderr), float(exact.std()) / 141)


def test_the_energy_model_is_saved_with_a_sampler(tmp_path):
    options: dict[str, Any] = {
        "network": "MLP(width=8)",
        "energy_network": "MLP(width=8)",
        "device": "cpu",
        "progress": False,
    }
    target = JointMoG(dim=2)
    trained = fit(target, "egm-bs", steps=30, batch_size=32, proposals=16, out=tmp_path, **options)
    loaded = as_sampler(egm.load(tmp_path))
    assert trained.energy_model is not None
    assert loaded.energy_model is not None
    draws = [sampler.sample(320, seed=2, smc=SMC()) for sampler in (trained, loaded)]
    assert draws[0].log_z == draws[1].log_z
    x_t = target.space.to_latent(target.exact_sample(5, seed=0))
    t = torch.full((5,), 0.7)
    assert torch.equal(trained.energy_model(x_t, t), loaded.energy_model(x_t, t))


class Linear(nn.Module):
    """x̂_1 = slope · x, beyond a point with another slope."""

    def __init__(self, slope, beyond=None, at=0.0):
        super().__init__()
        self.slope, self.beyond, self.at = slope, slope if beyond is None else beyond, at
        self.nothing = nn.Parameter(torch.zeros(()))

    def forward(self, state, t):
        x = state["x"]
        return {"x": torch.where(x > self.at, self.slope * self.at + self.beyond * (x - self.at), self.slope * x)}


class Uphill(nn.Module):
    """An intermediate energy that leaves no weight above zero."""

    def forward(self, x_t, t):
        return 50.0 * torch.relu(x_t["x"][..., 0])


def flowing(network):
    """A flow on the line, with an energy model: what SMC needs."""
    target = egm.Target(egm.Space(x=egm.Real(1)), lambda x: 0.5 * x.square().sum(-1))
    path = ProductPath(target.space)
    model = EnergyModel(Uphill(), path, target)
    processes = {"x": Flow(path["x"])}  # type: ignore[arg-type]
    return Sampler(
        space=target.space, path=path, processes=processes, network=network, error=DenoiserError(path), target=target,
        energy_model=model, steps=4,
    )  # fmt: skip


def test_a_flow_that_does_not_fold_has_weights():
    draws = flowing(Linear(0.8)).sample(320, seed=1, smc=SMC())
    assert draws.log_weights is not None
    assert draws.groups == 16


@pytest.mark.parametrize("moves", [0, 2])
def test_a_flow_that_folds_has_none_and_says_why(moves):
    sampler = flowing(Linear(-6.0))
    for smc in (SMC(moves=moves), None):
        draws = sampler.sample(320, seed=1, smc=smc)
        assert len(draws) == 320
        assert draws.log_weights is None
        with pytest.raises(ValueError, match=r"log_z needs .*may not be invertible at 320 of 320 draws; take more"):
            _ = draws.log_z
        last = draws.summary().splitlines()[-1]
        assert last.startswith("unreliable, because there are no weights: the flow's map may not be invertible")


def test_a_fold_counts_although_resampling_has_removed_its_draws():
    """Beyond 1 the first step folds, onto (0.5, 1); none of those survives, but the map has no inverse all the same."""
    sampler, highest = flowing(Linear(0.8, beyond=-3.5, at=1.0)), []
    known = sampler.intermediate_energy()

    def watched(x, t):
        highest.append(float(x["x"].max()))
        return known(x, t)

    sampler.energy_model = watched  # type: ignore[assignment]
    draws = sampler.sample(320, seed=1, smc=SMC(threshold=1.0))
    assert highest[0] > 0.5 > 0.2 > highest[1]
    assert draws.log_weights is None
    with pytest.raises(ValueError, match=r"may not be invertible at \d+ of 320 draws"):
        _ = draws.ess


def test_what_it_needs_is_named(poor):
    mixed = egm.fit(JointMoG(dim=2), steps=1, network="MLP(width=8)", device="cpu", progress=False)
    with pytest.raises(ValueError, match="train by method='egm-bs', or use masked paths and a target with a partial"):
        mixed.sample(32, smc=SMC())
    with pytest.raises(ValueError, match="n must be a multiple of the 16 groups of smc, got 33"):
        poor.sample(33, smc=SMC())
    wrong: list[dict[str, Any]] = [{"threshold": 0.0}, {"threshold": 1.5}, {"groups": 1}, {"moves": -1}]
    for options in wrong:
        with pytest.raises(ValueError, match=next(iter(options))):
            SMC(**options)
    case = Case("symbols")
    with pytest.raises(ValueError, match="resampling between steps needs a common grid and weights"):
        simulate(
            case.predict, case.path, case.processes, 4, Course(solver="first-hitting"), weigh=True,
            between=lambda x, log_ratio, r: (x, log_ratio),
        )  # fmt: skip


def test_default_kernels():
    assert type(default_kernel(Ising(3, 0.4))).__name__ == "Gibbs"
    assert type(default_kernel(egm.targets.Funnel(dim=2))).__name__ == "MALA"
    assert type(default_kernel(JointMoG(dim=2))).__name__ == "Alternate"
