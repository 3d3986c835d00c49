"""Each part of a run is built once, and described once."""

import functools
from collections import Counter
from typing import Any

import pytest

import egm
from egm.config import parts, targets
from egm.networks import MLP, Preconditioned, ResidualMLP
from egm.paths import CondOT, Masked, ProductPath
from egm.processes import Diffusion, DiscreteJump
from support.training import SMALL_BS

OPTIONS: dict[str, Any] = SMALL_BS | {"steps": 2, "network": "ResidualMLP(width=8)"}
PARTS: tuple[type, ...] = (
    egm.targets.GBRBM,
    ProductPath,
    CondOT,
    Masked,
    Diffusion,
    DiscreteJump,
    ResidualMLP,
    MLP,
    Preconditioned,
)


@pytest.fixture
def made(monkeypatch):
    """How often each part is constructed."""
    count: Counter[str] = Counter()
    for part in PARTS:
        monkeypatch.setattr(part, "__init__", counted(part, count))
    return count


def counted(part: type, count: Counter[str]) -> Any:
    """A constructor that counts its calls for this very class."""
    plain: Any = part.__init__

    @functools.wraps(plain)  # keeps the signature, which expressions are checked against
    def constructor(self, *args, **options):
        count[part.__name__] += type(self) is part
        plain(self, *args, **options)

    return constructor


def test_fit_builds_each_part_once(made, tmp_path):
    target = egm.targets.GBRBM()
    egm.fit(target, "egm-bs", out=tmp_path, **OPTIONS)
    once = dict.fromkeys(("GBRBM", "ProductPath", "CondOT", "Masked", "Diffusion", "DiscreteJump"), 1)
    assert made == {**once, "ResidualMLP": 1, "MLP": 1, "Preconditioned": 2}  # the denoiser and E^φ


def test_loading_builds_each_part_once(made, tmp_path):
    egm.fit(egm.targets.GBRBM(), "egm-bs", out=tmp_path, **OPTIONS)
    made.clear()
    egm.load(tmp_path)
    once = dict.fromkeys(("GBRBM", "ProductPath", "CondOT", "Masked", "Diffusion", "DiscreteJump"), 1)
    assert made == {**once, "ResidualMLP": 1, "MLP": 1, "Preconditioned": 2}


def test_nothing_is_parsed_by_fit(monkeypatch, tmp_path):
    """Only `load` and `resume` read descriptions."""

    def refuse(*args, **options):
        raise AssertionError("parsed")

    monkeypatch.setattr(targets, "make_space", refuse)
    monkeypatch.setattr(targets, "make_target", refuse)
    monkeypatch.setattr(parts, "require_network", refuse)
    egm.fit(egm.targets.GBRBM(), "egm-bs", steps=2, out=tmp_path, **SMALL_BS)
