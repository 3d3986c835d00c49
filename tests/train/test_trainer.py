"""The training loop: schedules, clipping, averages, refreshes, limits, counts; evaluations change nothing."""

import math
import time
from typing import Any

import pytest
import torch

import egm
from egm.evaluation.scores import quick_scores
from egm.runs.directory import RunDirectory
from egm.sampler import Sampler
from egm.train.buffer import ReplayBuffer
from egm.train.method import T_MAX
from egm.train.progress import Silent
from egm.train.trainer import Trainer
from support.training import SPACES, TINY, Recorder, assert_same, make_trainer, small

CHECK_CALLS = 24 + 24 + 1 + 24 + 1  # what Target.check asks for


def run(method="egm", *, space="mixed", **options):
    """A finished trainer and the lines of its log."""
    progress = Recorder()
    trainer = make_trainer(SPACES[space](), method, progress=progress, **options)
    trainer.train()
    return trainer, progress.rows


def flat(parameters) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in parameters])


# ---------------------------------------------------------------------- schedules


def test_learning_rates_follow_a_cosine_in_each_group():
    rates: dict[str, Any] = {"learning_rate": 2e-3, "final_learning_rate": 1e-4, "energy_learning_rate": 8e-3}
    trainer = make_trainer(SPACES["mixed"](), "egm-bs", steps=10, **rates)
    for step, cosine in [(0, 1.0), (5, 0.5), (10, 0.0), (2, 0.5 * (1 + math.cos(0.2 * math.pi)))]:
        trainer.step = step
        trainer.set_learning_rates()
        found = [group["lr"] for group in trainer.optimizer.param_groups]
        assert found == pytest.approx([1e-4 + 1.9e-3 * cosine, 1e-4 + 7.9e-3 * cosine], rel=1e-12)


def test_a_final_rate_above_the_first_is_not_reached():
    trainer = make_trainer(SPACES["mixed"](), "egm-bs", steps=10, final_learning_rate=5e-3, learning_rate=1e-2)
    trainer.step = 10
    trainer.set_learning_rates()
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [5e-3, 1e-3]  # E^φ's is 1e-3 all along


def test_the_log_shows_the_rate_that_each_step_took():
    _, rows = run(steps=8, log_every=1, learning_rate=1e-2, final_learning_rate=0.0)
    expected = [5e-3 * (1 + math.cos(math.pi * step / 8)) for step in range(8)]
    assert [row["learning_rate"] for row in rows] == pytest.approx(expected, rel=1e-12)


def test_the_first_step_of_adamw_moves_by_the_learning_rate():
    """|Δ| = rate wherever there is a gradient: the groups are wired to the right parameters."""
    trainer = make_trainer(SPACES["mixed"](), "egm-bs", steps=9, learning_rate=1e-3, energy_learning_rate=1e-2)
    trainer.buffer.add(trainer.sampler.latent(16, generator=trainer.generator).state)
    modules = trainer.method.network, trainer.method.modules()["energy_model"]
    before = [flat(module.parameters()) for module in modules if module is not None]
    trainer.set_learning_rates()
    trainer.gradient_step()
    after = [flat(module.parameters()) for module in modules if module is not None]
    for old, new, rate in zip(before, after, (1e-3, 1e-2), strict=True):
        assert float((new - old).abs().max()) == pytest.approx(rate, rel=1e-2)


def test_gradients_are_clipped_group_by_group():
    def gradients(clip):
        trainer = make_trainer(SPACES["mixed"](), "egm-bs", steps=9, lambda_cont=5.0, clip_gradient=clip)
        trainer.buffer.add(trainer.sampler.latent(16, generator=trainer.generator).state)
        trainer.gradient_step()
        groups = trainer.optimizer.param_groups
        return [flat(p.grad for p in group["params"] if p.grad is not None) for group in groups]

    free = gradients(None)
    norms = sorted(float(g.norm()) for g in free)
    assert norms[1] > 1.2 * norms[0] > 0  # or the next lines could not tell the groups apart
    clip = (norms[0] + norms[1]) / 2
    for own, clipped in zip(free, gradients(clip), strict=True):
        torch.testing.assert_close(clipped, own * min(1.0, clip / float(own.norm())), rtol=1e-4, atol=1e-9)


# ---------------------------------------------------------------------- averages


def test_draws_are_made_with_the_running_average():
    seen = []
    progress = Recorder(lambda row: seen.append(flat(trainer.method.network.parameters())))
    options = {"steps": 10, "log_every": 1, "ema": 0.7, "ema_start": 0.4, "learning_rate": 1e-2}
    trainer = make_trainer(SPACES["mixed"](), progress=progress, **options)
    own = trainer.sampler.network
    trainer.train()
    averaged = torch.stack(seen[4:])  # from the step on that begins with 40 % done
    weights = 0.7 ** torch.arange(len(averaged) - 1, -1, -1)
    expected = (weights[:, None] * averaged).sum(0) / weights.sum()
    assert trainer.sampler.network is not own
    torch.testing.assert_close(flat(trainer.sampler.network.parameters()), expected, rtol=1e-5, atol=1e-6)
    assert float((expected - seen[-1]).abs().max()) > 1e-3


@pytest.mark.parametrize("options", [{"ema": 0.0, "ema_start": 0.0}, {"ema": 0.9, "ema_start": 1.0}])
def test_without_an_average_draws_are_made_with_the_network(options):
    trainer, _ = run(steps=5, **options)
    assert trainer.sampler.network is trainer.method.network
    assert int(trainer.average.n_averaged) == 0


def test_the_energy_model_is_used_through_its_average_once_that_has_begun():
    begun = []
    progress = Recorder(lambda row: begun.append(trainer.method.averaging))
    trainer = make_trainer(SPACES["mixed"](), "egm-bs", steps=10, log_every=1, energy_ema_start=0.5, progress=progress)
    trainer.train()
    assert begun == [False] * 5 + [True] * 5


# ---------------------------------------------------------------------- refreshes


def test_the_buffer_is_refreshed_every_inner_steps(monkeypatch):
    drawn = []
    plain = Sampler.latent

    def latent(self, n, **keywords):
        drawn.append((trainer.step, n, self.network))
        return plain(self, n, **keywords)

    monkeypatch.setattr(Sampler, "latent", latent)
    options = {"steps": 20, "inner_steps": 6, "refresh": 16, "buffer": 40, "ema_start": 0.5}
    trainer = make_trainer(SPACES["mixed"](), **options)
    sizes = []
    monkeypatch.setattr(ReplayBuffer, "add", _after(ReplayBuffer.add, lambda self: sizes.append(self.filled)))
    trainer.train()
    network, average = trainer.method.network, trainer.average.module
    assert drawn == [(0, 16, network), (6, 16, network), (12, 16, average), (18, 16, average)]
    assert sizes == [16, 32, 40, 40]


def _after(function, then):
    def wrapped(self, *arguments):
        function(self, *arguments)
        then(self)

    return wrapped


def test_end_points_come_from_the_buffer(monkeypatch):
    given = []
    trainer = make_trainer(SPACES["mixed"](), steps=3)
    plain = trainer.method.losses
    monkeypatch.setattr(trainer.method, "losses", lambda x_1, **rest: given.append(x_1) or plain(x_1, **rest))
    trainer.train()
    stored = trainer.buffer.state_dict()["states"]
    for x_1 in given:
        assert len(x_1["x"]) == TINY["batch_size"]
        rows = torch.cat([x_1["x"], x_1["b"]], 1)
        known = torch.cat([stored["x"], stored["b"]], 1)  # type: ignore[index]
        assert bool((rows[:, None] == known).all(-1).any(-1).all())


# ---------------------------------------------------------------------- limits


def test_one_limit_is_needed():
    made = make_trainer(SPACES["mixed"](), steps=3)
    for steps, seconds in ((None, None), (3, 1.0)):
        with pytest.raises(ValueError, match="steps or time_limit"):
            Trainer(made.method, made.sampler, made.options, steps=steps, time_limit=seconds, seed=0, progress=Silent())


def test_steps_are_gradient_steps():
    for method in ("egm", "egm-bs"):
        trainer, rows = run(method, steps=9, inner_steps=2)
        assert trainer.step == 9
        assert {int(x["step"]) for x in trainer.optimizer.state_dict()["state"].values()} == {9}
        assert [row["step"] for row in rows] == [7, 9]


def test_a_time_limit_stops_the_run():
    began = time.monotonic()
    progress = Recorder()
    trainer = make_trainer(SPACES["mixed"](), time_limit=0.5, progress=progress, log_every=1)
    trainer.train()
    wall = time.monotonic() - began
    assert 0.5 <= trainer.seconds <= wall < 5
    assert trainer.step > 3
    seconds = [row["seconds"] for row in progress.rows]
    assert seconds == sorted(seconds)
    assert 0.49 <= seconds[-1] <= wall + 0.01
    assert progress.shares[-1] == 1

    def rate(second):
        return 1e-5 + 0.99e-3 * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, second / 0.5))))

    for before, now, row in zip([0.0, *seconds], seconds, progress.rows, strict=False):  # two decimals are written
        assert rate(now + 0.006) <= row["learning_rate"] <= rate(before - 0.006)


# ---------------------------------------------------------------------- counts


def far(method, batch: int) -> int:
    """How many of a batch's stratified times have t + ε < 1."""
    span = T_MAX - method.regression.t_min
    return int(batch * (1 - method.options.epsilon - method.regression.t_min) / span)


@pytest.mark.parametrize("method", ["egm", "egm-bs"])
@pytest.mark.parametrize("space", SPACES)
def test_every_energy_is_counted_and_nothing_else(tmp_path, space, method):
    """Each step needs batch × K energies; E^φ needs none, except for the known terms of a lattice."""
    target = SPACES[space]()
    target.energy_calls = 1000  # of an earlier run with the same target
    options = {**small(method), **({"opening": 0.0} if method == "egm-bs" else {})}  # the same share in all steps
    egm.fit(target, method, steps=14, evaluate_every=7, out=tmp_path, **options)
    batch, count = TINY["batch_size"], TINY["proposals"]
    each, once = batch * count, batch * count if method == "egm-bs" else 0  # the first step finds the units of E^φ
    if method == "egm-bs" and target.has_partial_energy:
        bootstrapped = far(make_trainer(target, method, steps=1).method, batch)
        assert 0 < bootstrapped < batch
        each, once = each + bootstrapped * count + batch, once + batch  # proposals and the loss
    rows = RunDirectory(tmp_path).read_metrics()
    found = {int(row["step"]): int(row["energy_calls"]) for row in rows}
    assert found == {step: CHECK_CALLS + once + step * each for step in (7, 14)}
    assert len(rows) == 4  # the lines of evaluations say the same
    assert {row["score_calls"] for row in rows} == {"0"}
    assert target.energy_calls == 1000 + found[14]


def test_lines_hold_means_since_the_last_one():
    _, single = run("egm-bs", steps=10, log_every=1)
    _, rows = run("egm-bs", steps=10, log_every=4)
    assert [row["step"] for row in rows] == [4, 8, 10]
    for name in ("sampler_loss", "energy_loss", "ess"):
        values = [row[name] for row in single]
        means = [sum(part) / len(part) for part in (values[:4], values[4:8], values[8:])]
        assert [row[name] for row in rows] == pytest.approx(means, rel=1e-5)
        assert len(set(values)) == 10


# ---------------------------------------------------------------------- evaluations and checkpoints change nothing


@pytest.mark.parametrize("method", ["egm", "egm-bs"])
def test_evaluation_leaves_training_alone(method):
    target = SPACES["mixed"]()
    plain, rows = run(method, steps=15)
    progress = Recorder()
    trainer = make_trainer(
        target, method, steps=15, evaluate_every=4, evaluate=quick_scores(target, 20), progress=progress
    )
    trainer.train()
    assert_same(trainer.state_dict() | {"seconds": 0}, plain.state_dict() | {"seconds": 0})
    scored = [row for row in progress.rows if "e_w1" in row]
    assert [row["step"] for row in scored] == [4, 8, 12, 15]
    assert len({row["e_w1"] for row in scored}) == 4
    assert len({row["e_w1_floor"] for row in scored}) == 1
    kept = [{k: v for k, v in row.items() if k != "seconds"} for row in progress.rows if "e_w1" not in row]
    assert kept == [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_each_evaluation_has_a_seed_of_its_own():
    def seeds(seed):
        given = []
        evaluate = lambda sampler, seed: given.append(seed) or {"e_w1": 1.0}  # noqa: E731
        make_trainer(SPACES["mixed"](), steps=4, seed=seed, evaluate_every=1, evaluate=evaluate).train()
        return given

    assert len({*seeds(0), *seeds(1)}) == 8
    assert seeds(0) == seeds(0)


def test_checkpoints_and_log_leave_training_alone(tmp_path):
    plain, _ = run(steps=15, checkpoint_every=0, log_every=15)
    run_directory = RunDirectory(tmp_path)
    trainer = make_trainer(SPACES["mixed"](), steps=15, checkpoint_every=1, log_every=1, run=run_directory)
    trainer.train()
    assert_same(trainer.state_dict() | {"seconds": 0}, plain.state_dict() | {"seconds": 0})


def test_a_checkpoint_is_written_before_its_evaluation(tmp_path):
    """An evaluation that fails loses nothing."""
    run_directory = RunDirectory(tmp_path)

    def fails(sampler, seed):
        raise RuntimeError("no reference")

    options = {"steps": 15, "checkpoint_every": 5, "evaluate_every": 5, "evaluate": fails, "run": run_directory}
    with pytest.raises(RuntimeError, match="no reference"):
        make_trainer(SPACES["mixed"](), **options).train()
    assert (run_directory.read_state("cpu") or {})["step"] == 5


def test_the_seed_decides_everything():
    first, again, other = (run(steps=5, seed=seed)[0] for seed in (1, 1, 2))
    assert_same(first.state_dict() | {"seconds": 0}, again.state_dict() | {"seconds": 0})
    assert not torch.equal(first.generator.get_state(), other.generator.get_state())
    assert not torch.equal(flat(first.method.network.parameters()), flat(other.method.network.parameters()))
