"""The result of an inspection: findings, each with its fix, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["problem", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    Attributes:
        level: "problem" (training would fail or sample something else), "warning" (it would be slow, poor or limited),
            or "note" (harmless, good to know).
        name: name of the check, a word or two.
        text: description of the result, and what to do about it.
    """

    level: Level
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.name}: {self.text}"


@dataclass(frozen=True)
class Inspection:
    """All findings about a target, the worst first, and their cost.

    Attributes:
        target: how the target prints.
        findings: the findings.
        complete: False if the energy could not be called properly, so that the later checks were left out.
        energy_calls: number of states whose energy was evaluated.
        seconds: duration of the inspection.
    """

    target: str
    findings: tuple[Finding, ...]
    complete: bool
    energy_calls: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether there are no problems; there may be warnings and notes."""
        return not self.at("problem")

    def at(self, level: Level) -> tuple[Finding, ...]:
        """Returns the findings of one level."""
        return tuple(finding for finding in self.findings if finding.level == level)

    @property
    def verdict(self) -> str:
        """Summary in one line."""
        warnings = _counted(len(self.at("warning")), "warning")
        cost = f"({self.energy_calls} energies in {self.seconds:.1f} s)"
        if self.ok:
            return f"no problem found{', ' + warnings if self.at('warning') else ''} {cost}"
        rest = "" if self.complete else "; run the check again after that, because the rest was left out"
        return f"{_counted(len(self.at('problem')), 'problem')} to fix before training{rest} {cost}"

    def __str__(self) -> str:
        return "\n".join([f"{self.target}: {self.verdict}", *(f"  {finding}" for finding in self.findings)])


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
