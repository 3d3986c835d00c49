"""Steps as CUDA graphs: never on the CPU; on a GPU the same numbers as plain steps, whatever happens in between."""

import warnings

import pytest
import torch

import egm
from egm.methods.regression import STAGES
from egm.simulation.capture import WARM_UP, CapturedStep
from egm.targets.base import EnergyError
from support.training import SPACES, Recorder, double_well, make_trainer, own_target

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
STEPS = 30
# The buffer fills up at steps 1, 7 and 13 (16, 32, 40 of 40 states), averaging of E^φ begins after step 9, that of the
# network after step 21, between the last two of five draws.
OPTIONS = {"steps": STEPS, "log_every": 1, "ema_start": 0.7}


def test_the_cpu_never_records(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a CUDA graph on the CPU")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", refuse)
    target, calls = own_target(), []

    def step():
        calls.append(len(calls))
        target.energy_calls += 7
        return {"loss": torch.tensor(float(len(calls)))}

    captured = CapturedStep(step, torch.Generator(), target)
    values = [float(captured((n // 5, n > 3))["loss"]) for n in range(2 * WARM_UP + 4)]
    assert values == list(range(1, 2 * WARM_UP + 5))
    assert target.energy_calls == 7 * len(values)


def test_what_is_new_runs_before_it_is_recorded(monkeypatch):
    """A kernel cannot be loaded for the first time while a CUDA graph is recorded."""
    events = []

    class Recording:
        def replay(self):
            events.append("replayed")

    def record(self, key):
        events.append(f"recorded {key}")
        self._graph, self._key = Recording(), key

    monkeypatch.setattr(CapturedStep, "_record", record)
    captured = CapturedStep(lambda: events.append("plain") or {}, torch.Generator(), None)
    captured._enabled = True
    for key in "a" * (WARM_UP + 2) + "bbba":
        captured(key)
    first = ["plain"] * WARM_UP + ["recorded a", "replayed", "replayed"]
    assert events == [*first, "plain", "recorded b", "replayed", "replayed", "plain"]


def test_times_that_open_are_part_of_the_key():
    keys = []
    trainer = make_trainer(SPACES["mixed"](), "egm-bs", steps=128, opening=0.5, energy_ema_start=0.0)
    trainer.captured = lambda key: keys.append(key) or trainer.gradient_step()  # type: ignore[assignment]
    trainer.train()
    stages = [stage for _, (_, stage) in keys]
    done = [max(step - 1, 0) for step in range(128)]  # 50 parts over 64 of the steps
    assert stages == [min(STAGES * steps // 64, STAGES - 1) for steps in done]


# ---------------------------------------------------------------------- on a GPU


def train(target, method="egm-bs", *, plain: bool, then=lambda row: None, **options):
    """Returns the log and the trainer of a run, by CUDA graphs or by plain steps."""
    progress = Recorder(then)
    if method == "egm-bs":
        options = {"opening": 0.0, **options}
    trainer = make_trainer(target, method, device="cuda", progress=progress, **{**OPTIONS, **options})
    if plain:
        trainer.captured = lambda key: trainer.gradient_step()  # type: ignore[assignment]
        trainer.drawing = lambda key: trainer._draw()  # type: ignore[assignment]
    trainer.train()
    return progress.rows, trainer


def assert_same_logs(a, b):
    """To the rounding that thirty steps may carry on: sums on a GPU have no fixed order."""
    assert [row["energy_calls"] for row in a] == [row["energy_calls"] for row in b]
    for name in set(a[0]) - {"seconds", "energy_calls"}:
        found, expected = ([row[name] for row in rows] for rows in (a, b))
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4), name


@pytest.fixture
def recordings(monkeypatch):
    """The keys for which CUDA graphs were recorded."""
    keys, plain = [], CapturedStep._record

    def record(self, key):
        keys.append(key)
        plain(self, key)
        assert self._graph is not None

    monkeypatch.setattr(CapturedStep, "_record", record)
    return keys


@needs_cuda
@pytest.mark.parametrize("method", ["egm", "egm-bs", "egm-sp"])
@pytest.mark.parametrize("space", SPACES)
def test_recorded_steps_are_plain_steps(recordings, space, method):
    """Also across new CUDA graphs, as the buffer fills and averaging begins; with the same random numbers."""
    expected, plain = train(SPACES[space](), method, plain=True)
    assert recordings == []
    found, trainer = train(SPACES[space](), method, plain=False)
    assert_same_logs(found, expected)
    assert torch.equal(trainer.generator.get_state(), plain.generator.get_state())
    torch.testing.assert_close(
        trainer.method.network.state_dict(), plain.method.network.state_dict(), rtol=1e-3, atol=1e-4
    )
    averages, bootstraps = [False, False, True, True], method == "egm-bs"
    if not bootstraps:
        averages = [False] * 3
    phases = averages if method == "egm-sp" else [(begun, STAGES - 1) for begun in averages]
    draws = [key for key in recordings if key[0] == "draws"]
    assert [key for key in recordings if key not in draws] == list(
        zip([16, 32, 32, 40] if bootstraps else [16, 32, 40], phases, strict=True)
    )
    assert len(draws) == 1  # the last of five is the first by the average


@needs_cuda
def test_steps_are_recorded_again_as_times_open(recordings):
    expected, _ = train(SPACES["mixed"](), plain=True, opening=0.9, steps=150)
    found, _ = train(SPACES["mixed"](), plain=False, opening=0.9, steps=150)
    assert_same_logs(found[:STEPS], expected[:STEPS])
    stages = [phase[1] for _, phase in (key for key in recordings if key[0] != "draws")]
    assert len(set(stages)) > STAGES // 2
    assert stages == sorted(stages)
    assert stages[-1] == STAGES - 1


@needs_cuda
def test_centred_estimates_are_recorded(recordings):
    expected, _ = train(SPACES["mixed"](), estimator="centred", plain=True)
    found, _ = train(SPACES["mixed"](), estimator="centred", plain=False)
    assert_same_logs(found, expected)
    assert recordings


@needs_cuda
def test_losses_of_replayed_steps_move(recordings):
    """A replay that drew the same random numbers again, or left the parameters alone, would repeat itself."""
    rows, trainer = train(SPACES["mixed"](), plain=False, inner_steps=100, energy_ema_start=0.0)
    assert len(recordings) == 1
    assert len({row["sampler_loss"] for row in rows}) == STEPS
    assert len({row["ess"] for row in rows}) == STEPS
    rates = [row["learning_rate"] for row in rows]
    assert rates == sorted(set(rates), reverse=True)
    assert {int(x["step"]) for x in trainer.optimizer.state_dict()["state"].values()} == {STEPS}


@needs_cuda
def test_a_dead_recording_does_not_spoil_the_next(recordings):
    """Garbage collection would free the dead CUDA graph while the next is recorded, which aborts the recording."""
    generator, target = torch.Generator("cuda:0"), own_target()

    def step():
        garbage = [[] for _ in range(5000)]  # enough for a collection
        for cycle in garbage:
            cycle.append(cycle)
        return {"loss": torch.rand(2, generator=generator, device="cuda").sum()}

    for _ in range(3):
        captured = CapturedStep(step, generator, target)
        captured.itself = captured  # type: ignore[attr-defined]
        for _ in range(WARM_UP + 2):
            captured("key")
    assert len(recordings) == 3


@needs_cuda
def test_an_energy_that_waits_for_the_device_runs_without():
    def waits(x):
        return double_well(x) + 0.0 * float(x.sum())

    expected, _ = train(own_target(waits), plain=True)
    with pytest.warns(RuntimeWarning, match="could not be recorded as a CUDA graph") as caught:
        found, trainer = train(own_target(waits), plain=False)
    assert len([w for w in caught if issubclass(w.category, RuntimeWarning)]) == 1
    assert_same_logs(found, expected)
    assert trainer.step == STEPS
    assert torch.rand(1, device="cuda").shape == (1,)  # the failed recording left torch's own generator usable


@needs_cuda
@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
def test_an_illegal_energy_in_a_replayed_step_is_caught(recordings, bad):
    poison = torch.zeros((), device="cuda")

    def energy(x):
        return torch.where(poison > 0, bad, double_well(x))

    def spoil(row):
        if row["step"] == 20:
            poison.fill_(1.0)

    with pytest.raises(EnergyError, match=r"the energy is (nan|-inf) at the state x=\["):
        train(own_target(energy), plain=False, then=spoil, inner_steps=100)
    assert len(recordings) == 2  # averaging begins; nothing else was recorded, so it was a replay that met it


@needs_cuda
def test_fit_records_on_a_gpu(recordings):
    """From the outside: no warning, draws on the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler = egm.fit(egm.targets.GBRBM(), steps=12, batch_size=16, refresh=32, device="cuda", progress=False)
    assert recordings
    draws = sampler.sample(5, seed=0)
    assert draws["v"].device.type == "cuda"
    assert bool(torch.isfinite(draws["v"]).all())
