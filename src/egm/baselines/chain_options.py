"""Options of the Markov chains."""

from __future__ import annotations

from dataclasses import dataclass

from egm.config.options import check_numbers


@dataclass(frozen=True)
class ChainOptions:
    """Options of how chains run and which states are kept.

    Attributes:
        chains: number of chains, advanced together.
        warmup: first steps of each chain, in which step sizes adapt and whose states are discarded. By default 500
            where real variables move, whose step sizes must be tuned, and otherwise 0, as in the paper.
        thin: steps of a chain from one kept state to the next.
        keep: largest number of kept states, over all chains; if there are more, every second one is dropped and thin is
            doubled.
        energy_calls: stop before all energy calls of the run, warm-up included, exceed this number.
    """

    chains: int = 4
    warmup: int | None = None
    thin: int = 1
    keep: int = 100_000
    energy_calls: int | None = None

    def __post_init__(self) -> None:
        for name in ("chains", "thin", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        check_numbers(self, positive=("energy_calls",), non_negative=("warmup",))
        if self.keep < self.chains:
            raise ValueError(
                f"keep={self.keep} does not hold one state of each of {self.chains} chains; raise keep or lower chains"
            )


@dataclass(frozen=True)
class GibbsOptions(ChainOptions):
    """Options of chains that redraw symbols site by site.

    Attributes:
        redraw: number of random sites that a step of gibbs (or tempering) redraws; by default it scans all sites.
    """

    redraw: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, positive=("redraw",))


@dataclass(frozen=True)
class TemperingOptions(GibbsOptions):
    """Options of tempering.

    Attributes:
        replicas: number of temperatures of tempering; by default 2 + √d, d the number of sites and real dimensions.
        hottest: inverse temperature of the hottest replica; the others lie between it and 1 in equal ratios.
    """

    replicas: int | None = None
    hottest: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas is not None and self.replicas < 2:
            raise ValueError(f"replicas must be at least 2, got {self.replicas}; for one temperature use gibbs or mala")
        if not 0 < self.hottest < 1:
            raise ValueError(f"hottest is an inverse temperature between 0 and 1 (the target's), got {self.hottest}")
