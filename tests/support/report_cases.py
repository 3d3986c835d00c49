"""Small runs to report on, and a reader of pages that complains about what a page must not hold."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

import egm

SECTIONS = (
    *("Metrics", "Energy and observables", "Samples", "Weights", "Training", "Cost", "Configuration", "Environment"),
)
TINY: dict[str, Any] = {
    "network": "MLP(width=8)", "steps": 6, "batch_size": 16, "refresh": 32, "buffer": 64, "log_every": 2,
    "sample_steps": 6, "device": "cpu", "progress": False,
}  # fmt: skip
VOID = ("meta", "img", "input", "br")


def particles(dim: int = 2, name: str = "Springs") -> egm.Target:
    """Centred particles with types and a user-defined energy."""
    space = egm.Space(x=egm.Real((4, dim), centered=True), types=egm.Categorical(2, shape=4))

    def energy(x: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        return 0.5 * (x.square().sum(-1) * (1 + types)).sum(-1)

    return egm.Target(space, energy, name=name)


def make_runs(folder: Path) -> dict[str, Path]:
    """An Ising lattice, a mixed target, user-defined particles, and chains."""
    folders = {name: folder / name for name in ("ising", "mixed", "particles", "chain")}
    egm.fit(egm.targets.Ising(3, 0.2), out=folders["ising"], **TINY)
    egm.fit(egm.targets.GBRBM(), out=folders["mixed"], **TINY)
    egm.fit(particles(), out=folders["particles"], **TINY)
    egm.fit(egm.targets.GBRBM(), "gibbs", steps=80, out=folders["chain"], device="cpu", progress=False)
    return folders


class Page(HTMLParser):
    """What a page consists of; raises where elements are not nested as they should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"elements that are not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def values(self, *names: str) -> list[str]:
        return [a[name] or "" for _, a in self.elements for name in names if name in a]
