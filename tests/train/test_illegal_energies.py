"""Energies that go wrong in the middle of training: what is said, what is kept, and how to go on."""

import re
import signal

import pytest
import torch

import egm
from egm.runs.directory import RunDirectory
from egm.targets.base import EnergyError
from egm.train.trainer import Diverged
from support.training import (
    SMALL,
    SPACES,
    assert_same_runs,
    double_well,
    make_trainer,
    metrics_of,
    own_target,
    small,
    state_of,
)

STEPS = 40
NAN, INF = float("nan"), float("inf")


class Spoiled:
    """The double well, until `legal` calls were made; then `bad` for one state of each batch, at `index`."""

    def __init__(self, bad: float, legal: int, *, index: int = 5) -> None:
        self.bad, self.legal, self.index, self.state = bad, legal, index, torch.zeros(0)

    def __call__(self, x):
        energy = double_well(x)
        self.legal -= 1
        if self.legal < 0:
            if not len(self.state):
                self.state = x.reshape(-1, 1)[self.index].clone()
            energy.view(-1)[self.index] = self.bad
        return energy


@pytest.mark.parametrize("method", ["egm", "egm-bs"])
@pytest.mark.parametrize("bad", [NAN, -INF])
def test_training_stops_keeps_the_last_good_checkpoint_and_can_go_on(tmp_path, bad, method):
    """Once the energy is repaired, the run ends as if nothing had happened."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    egm.fit(own_target(), method, steps=STEPS, out=whole, **small(method))
    spoiled = Spoiled(bad, 5 + 26)  # five calls by the check; the 27th step is the first to see it
    with pytest.raises(EnergyError) as error:
        egm.fit(own_target(spoiled), method, steps=STEPS, out=run, **small(method))
    # The message shows the first illegal state.
    assert f"the energy is {bad} at the state x=" in str(error.value)
    shown = float(re.findall(r"x=\[([-+.e0-9]+)\]", str(error.value))[0])
    assert shown == pytest.approx(float(spoiled.state), rel=1e-6)
    state = state_of(run)
    assert state["step"] == 20
    assert all(bool(torch.isfinite(x).all()) for x in state["modules"]["network"].values())
    assert len(egm.load(run).sample(5)) == 5
    egm.resume(run, target=own_target(), progress=False)
    assert_same_runs(run, whole)


def test_the_error_comes_before_the_next_refresh_at_the_latest(tmp_path):
    """The sampler never draws into the buffer after an illegal energy."""
    spoiled = Spoiled(NAN, 5 + 13)
    with pytest.raises(EnergyError):
        egm.fit(own_target(spoiled), "egm", steps=STEPS, out=tmp_path, **{**SMALL, "checkpoint_every": 0})
    assert -spoiled.legal == 18 - 13  # the steps up to the refresh at 18 were taken
    assert not (tmp_path / "checkpoint.pt").exists()
    assert [int(row["step"]) for row in metrics_of(tmp_path)] == [7, 14]
    egm.resume(tmp_path, target=own_target(), progress=False)  # from the beginning
    assert state_of(tmp_path)["step"] == STEPS


def test_an_illegal_energy_in_the_last_steps_is_not_overlooked(tmp_path):
    with pytest.raises(EnergyError, match="nan"):
        egm.fit(own_target(Spoiled(NAN, 5 + STEPS - 1)), "egm", steps=STEPS, out=tmp_path, **SMALL)
    assert state_of(tmp_path)["step"] == 30


def test_an_interrupt_after_an_illegal_energy_reports_the_energy(tmp_path):
    """What is saved on an interrupt is checked as well."""
    spoiled = Spoiled(NAN, 5 + 13)

    def energy(x):
        value = spoiled(x)
        if spoiled.legal == -2:
            signal.raise_signal(signal.SIGINT)
        return value

    with pytest.raises(EnergyError, match="nan"):
        egm.fit(own_target(energy), "egm", steps=STEPS, out=tmp_path, **SMALL)
    assert state_of(tmp_path)["step"] == 10


def test_a_diverged_network_is_named_and_its_checkpoint_not_written(tmp_path):
    """NaN weights are not the energy's fault, and must not replace the last good checkpoint."""
    trainer = make_trainer(
        SPACES["continuous"](), steps=20, run=RunDirectory(tmp_path), checkpoint_every=4, inner_steps=4
    )
    plain = trainer.update_averages

    def update_averages():
        plain()
        if trainer.step == 5:
            next(trainer.method.network.parameters()).data.fill_(float("nan"))

    trainer.update_averages = update_averages  # type: ignore[method-assign]
    with pytest.raises(Diverged, match=r"diverged before step 8: .*lower learning_rate \(0.001\) or set clip_gradient"):
        trainer.train()
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 4


def test_a_rare_region_where_the_energy_is_nan_is_found():
    """One draw in two hundred: the check at the start misses it, training does not."""

    def energy(x):
        return torch.where(x[..., 0] > 2.6, NAN, double_well(x))

    target = own_target(energy)
    target.check(seed=0)
    with pytest.raises(EnergyError, match="the energy is nan at the state") as error:
        egm.fit(target, "egm", steps=400, **SMALL)
    assert float(re.findall(r"x=\[([-+.e0-9]+)\]", str(error.value))[0]) > 2.6


@pytest.mark.parametrize("bad", [NAN, -INF, INF])
def test_an_energy_that_is_illegal_from_the_start_is_refused(tmp_path, bad):
    """+inf too, if it is everywhere; nothing is written."""
    with pytest.raises(EnergyError, match=r"inf \(zero density\) on every one of 24|energy is (nan|-inf) at the state"):
        egm.fit(own_target(lambda x: x.sum(-1) * 0 + bad), "egm", steps=3, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_an_energy_that_becomes_inf_everywhere_stops_too(tmp_path):
    calls = []

    def energy(x):
        calls.append(len(x))
        return double_well(x) if len(calls) < 20 else torch.full_like(x[..., 0], INF)

    with pytest.raises(EnergyError, match=r"\+inf \(zero density\) on every proposal.*loc and scale"):
        egm.fit(own_target(energy), "egm", steps=STEPS, out=tmp_path, **SMALL)
    assert state_of(tmp_path)["step"] == 10


def test_states_whose_proposals_all_have_zero_density_teach_nothing():
    """Their estimate is empty, not zero: the network must not be pulled there."""
    finite = make_trainer(own_target(), steps=1)
    walled = make_trainer(own_target(lambda x: torch.full_like(x[..., 0], INF)), steps=1)
    for trainer, taught in ((finite, True), (walled, False)):
        trainer.buffer.add(trainer.sampler.latent(16, generator=trainer.generator).state)
        losses = trainer.gradient_step()
        assert bool(losses["sampler_loss"] > 0) == taught
        gradients = [p.grad for p in trainer.method.network.parameters() if p.grad is not None]
        assert any(bool((g != 0).any()) for g in gradients) == taught
        assert all(bool(torch.isfinite(g).all()) for g in gradients)


@pytest.mark.parametrize("method", ["egm", "egm-bs"])
@pytest.mark.parametrize("kind", ["real", "symbols", "mixed"])
def test_walls_train_without_nan(tmp_path, kind, method):
    """+inf is zero density: many proposals have it, and all the proposals of some states."""
    walls = {
        "real": (egm.Space(x=egm.Real(2)), lambda x: torch.where((x > 0.7).any(-1), INF, x.square().sum(-1))),
        "symbols": (egm.Space(s=egm.Categorical(3, 4)), lambda s: torch.where(s.sum(-1) > 4, INF, s.float().sum(-1))),
        "mixed": (
            egm.Space(x=egm.Real(1), s=egm.Categorical(2, 2)),
            lambda x, s: torch.where((s.sum(-1) == 1) | (x[..., 0] < 0), INF, x.square().sum(-1)),
        ),
    }
    space, plain = walls[kind]
    some, every = [], []

    def energy(**state):
        value = plain(**state)
        if value.ndim == 2:  # [proposals, batch]
            some.append(float(value.isinf().float().mean()))
            every.append(int(value.isinf().all(0).sum()))
        return value

    target = egm.Target(space, energy)
    sampler = egm.fit(target, method, steps=60, out=tmp_path, **small(method))
    state = state_of(tmp_path)
    for module in state["modules"].values():
        assert all(bool(torch.isfinite(x).all()) for x in module.values())
    rows = metrics_of(tmp_path)
    values = [float(row[name]) for row in rows for name in ("sampler_loss", "ess") if row[name]]
    assert all(abs(value) < 1e6 for value in values)
    assert sum(some) / len(some) > 0.1
    assert sum(every) > 5
    assert all(bool(torch.isfinite(x).all()) for x in sampler.sample(50).state.values())
