"""Small runs for the tests of the training loop: targets, options, and ways to stop a run in the middle."""

import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

import egm
from egm import api, targets
from egm.config.request import Request, make_request
from egm.methods.registry import find_method
from egm.methods.trained import Trained
from egm.runs.directory import RunDirectory
from egm.targets.base import Target
from egm.train.progress import Silent
from egm.train.trainer import Trainer

#: one target of each kind of space, all built in, with exact draws
SPACES = {
    "discrete": lambda: targets.Ising(3, 0.4),
    "continuous": lambda: targets.Funnel(dim=2),
    "mixed": lambda: targets.JointMoG(dim=2),
}
#: a run of milliseconds a step, whose intervals share no factor
TINY: dict[str, Any] = {
    **{"batch_size": 8, "proposals": 4, "inner_steps": 6, "refresh": 16, "buffer": 40, "sample_steps": 4},
    **{"log_every": 7, "checkpoint_every": 10, "ema_start": 0.5},
}
TINY_BS: dict[str, Any] = {**TINY, "energy_target": "direct", "energy_ema_start": 0.3, "opening": 0.4}
#: the same with networks, for EGM, EGM-BS and EGM-SP
SMALL: dict[str, Any] = {**TINY, "network": "MLP(width=8)", "device": "cpu", "progress": False}
SMALL_BS: dict[str, Any] = {**SMALL, **TINY_BS, "energy_network": "MLP(width=8)"}
SMALL_SP: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "proposals"}


def small(method: str) -> dict[str, Any]:
    """The options of one of the three, as for `egm.fit`."""
    return {"egm-bs": SMALL_BS, "egm-sp": SMALL_SP}.get(method, SMALL)


class Recorder(Silent):
    """Keeps every line of the log; calls `then(row)` after each."""

    def __init__(self, then=lambda row: None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.shares: list[float] = []
        self.then = then

    def update(self, done: float, row: dict[str, Any]) -> None:
        self.rows.append(dict(row))
        self.shares.append(done)
        self.then(row)


def make_trainer(
    target: Target,
    method: str = "egm",
    *,
    steps: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Silent | None = None,
    run: RunDirectory | None = None,
    evaluate=None,
    **options: Any,
) -> Trainer:
    """The trainer that `egm.fit` makes, with the given progress and evaluation."""
    shared = {name: value for name, value in (TINY_BS if method == "egm-bs" else TINY).items() if name in small(method)}
    trainer = trainer_of(
        target, method, steps=steps, time_limit=time_limit, seed=seed, device=torch.device(device), run=run,
        options={**shared, **options}, network="MLP(width=8)",
        energy_network="MLP(width=8)" if method == "egm-bs" else None,
    )  # fmt: skip
    trainer.progress, trainer.evaluate = progress or Silent(), evaluate
    return trainer


def trainer_of(target: Target, method: str, **request: Any) -> Trainer:
    """The trainer that `egm.fit` makes of a request."""
    kind = find_method(method)
    assert isinstance(kind, Trained)
    return kind.begin(Request(target, method, progress=False, **request))


def begin(target: Target, method: str, **arguments: Any) -> egm.AnySampler:
    """`egm.fit` as the command line calls it, with `source` and `notes` among the arguments."""
    names = {"out", *(field.name for field in fields(Request))}
    options = {name: value for name, value in arguments.items() if name not in names}
    others = {name: value for name, value in arguments.items() if name in names}
    return api.begin(make_request(target, method, options=options, **others))


def fit(target: Target, method: str = "egm-sp", **options: Any) -> egm.Sampler:
    """`egm.fit` of a method that trains a denoiser."""
    return as_sampler(egm.fit(target, method, **options))


def as_sampler(sampler: egm.AnySampler) -> egm.Sampler:
    """The sampler of a denoiser, for type checkers."""
    assert isinstance(sampler, egm.Sampler)
    return sampler


def interrupt_during(monkeypatch, *steps: int) -> None:
    """Ctrl-C in the middle of these gradient steps (counted from one), before anything in them has happened."""
    plain, left = Trainer.gradient_step, list(steps)

    def step(self: Trainer):
        if left and self.step + 1 == left[0]:
            left.pop(0)
            signal.raise_signal(signal.SIGINT)
        return plain(self)

    monkeypatch.setattr(Trainer, "gradient_step", step)


def metrics_of(run: str | Path) -> list[dict[str, str]]:
    """The lines of a run's log without the wall time."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in RunDirectory(run).read_metrics()]


def state_of(run: str | Path) -> dict[str, Any]:
    """Everything in a run's checkpoint but the wall time."""
    state = torch.load(Path(run) / "checkpoint.pt", weights_only=True)
    return {name: value for name, value in state.items() if name != "seconds"}


def assert_same(a: Any, b: Any, where: str = "state") -> None:
    """Nested dicts, lists and tensors are equal, bit by bit."""
    if isinstance(a, dict):
        assert list(a) == list(b), where
        for name in a:
            assert_same(a[name], b[name], f"{where}.{name}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for index, pair in enumerate(zip(a, b, strict=True)):
            assert_same(*pair, f"{where}[{index}]")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a, b), where
    else:
        assert a == b, where


def assert_same_runs(a: str | Path, b: str | Path) -> None:
    """Two runs left the same log, the same state and the same network."""
    assert metrics_of(a) == metrics_of(b)
    assert_same(state_of(a), state_of(b))
    assert (Path(a) / "model.safetensors").read_bytes() == (Path(b) / "model.safetensors").read_bytes()


def double_well(x: torch.Tensor) -> torch.Tensor:
    """A user-defined energy on the line."""
    return (x.square() - 1).square().sum(-1)


def own_target(energy=double_well) -> Target:
    """A target on the line, always of the same name."""
    return egm.Target(egm.Space(x=egm.Real(1)), energy, name="own")
