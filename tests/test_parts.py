"""Each part of a run is built once, and described once."""

import functools
from collections import Counter
from typing import Any

import pytest

import egm
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


READERS = ("egm.config.targets.make_target", "egm.config.targets.make_space", "egm.methods.trained.require_network")


@pytest.mark.parametrize("reader", READERS)
def test_only_load_and_resume_read_descriptions(reader, monkeypatch, tmp_path):
    def refuse(*args, **options):
        raise AssertionError("read")

    monkeypatch.setattr(reader, refuse)
    egm.fit(egm.targets.GBRBM(), "egm-bs", steps=2, out=tmp_path, **SMALL_BS)
    with pytest.raises(AssertionError, match="read"):
        egm.load(tmp_path, None if reader.endswith("target") else egm.targets.GBRBM())
    with pytest.raises(AssertionError, match="read"):
        egm.resume(tmp_path, target=None if reader.endswith("target") else egm.targets.GBRBM(), steps=3)
