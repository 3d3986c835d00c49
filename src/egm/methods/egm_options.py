"""Options of EGM and EGM-BS, in groups that some baselines share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from egm.config.options import check_numbers
from egm.processes.base import RealLoss, SymbolLoss
from egm.train.method import T_MAX


@dataclass(frozen=True)
class EstimateOptions:
    """Options of the estimates of generators and energies.

    Attributes:
        proposals: number K of proposals for each state.
        proposal: law of the proposals, "reference", "flat" (the paper's), or "sampler", see `egm.estimation.proposals`:
            "sampler" is for EGM-BS, and end points further than ε away, which may lie in several modes, are drawn by
            "reference".
        clip_estimate: largest norm of a real variable's regression target.
        t_min: smallest time; by default 0.01 where flat proposals or rates are singular at 0, otherwise 0.
        memory: bytes that proposals may take at once.
    """

    proposals: int = 512
    proposal: Literal["reference", "flat", "sampler"] = "reference"
    clip_estimate: float | None = None
    t_min: float | None = None
    memory: int = 2**30

    def __post_init__(self) -> None:
        if self.proposals < 1:
            raise ValueError(f"proposals must be at least 1, got {self.proposals}")
        if self.t_min is not None and not 0 <= self.t_min < T_MAX:
            raise ValueError(f"t_min must lie in [0, {T_MAX}), got {self.t_min}")
        check_numbers(self, positive=("clip_estimate", "memory"))


@dataclass(frozen=True)
class RegressionOptions:
    """Options of the regression of the denoiser on estimates.

    Attributes:
        estimator: what is averaged for real variables: "end-points"; "centred", the same without the error of the
            proposals' own mean (flows and diffusions, small ε); or, where the energy has a gradient and the density no
            hard walls, "scores".
        real_loss: what the squared error of real variables compares, "denoiser" or "generator" (the paper's drift).
        symbol_loss: "cross-entropy" or "squared" (the paper's).
        lambda_disc, lambda_cont: weights of the losses of categorical and real variables.
        time_weight: multiply the loss by t ("t", as the paper does for mixed EGM-BS) or not ("none").
    """

    estimator: Literal["end-points", "centred", "scores"] = "end-points"
    real_loss: RealLoss = "denoiser"
    symbol_loss: SymbolLoss = "cross-entropy"
    lambda_disc: float = 1.0
    lambda_cont: float = 1.0
    time_weight: Literal["none", "t"] = "none"

    def __post_init__(self) -> None:
        check_numbers(self, non_negative=("lambda_disc", "lambda_cont"))


@dataclass(frozen=True)
class EnergyOptions:
    """Options of the intermediate energy E^φ.

    Attributes:
        epsilon: the bootstrapping step ε.
        opening: share of training in which the smallest time falls from 1 to t_min. Late times, which the target's
            energy determines, are then learned before the earlier times that are bootstrapped from them; 0 trains on
            all times from the first step on, as the paper does.
        energy_target: what E^φ is regressed on: "direct" (Ê_t from the target's energy) or "bootstrap" (Ê_t from E^φ
            at r, the target's energy at r = 1).
        energy_ema, energy_ema_start: decay of the running average of E^φ that estimates use, and the share of training
            after which averaging begins (before, E^φ itself is used).
        clip_energy: largest Ê_t that E^φ is regressed on.
    """

    epsilon: float = 0.1
    opening: float = 0.0
    energy_target: Literal["direct", "bootstrap"] = "bootstrap"
    energy_ema: float = 0.99
    energy_ema_start: float = 0.0
    clip_energy: float | None = None

    def __post_init__(self) -> None:
        if not 1 - T_MAX < self.epsilon < 1:  # a shorter step would never reach the target's energy
            raise ValueError(f"epsilon is a step in time and lies between {1 - T_MAX:.3g} and 1, got {self.epsilon}")
        if self.clip_energy is not None and not math.isfinite(self.clip_energy):
            raise ValueError(f"clip_energy must be a finite number, or None for no clipping, got {self.clip_energy}")
        check_numbers(self, decays=("energy_ema",), shares=("energy_ema_start", "opening"))


@dataclass(frozen=True)
class BootstrapOptions:
    """Options of bootstrapping the denoiser from E^φ.

    Attributes:
        bootstrap: "proposals" (random end points at r), or "single-site": the limit ε → 0 for masked variables, which
            needs no proposals (other variables keep theirs).
        sites: number of masked sites that "single-site" compares in each state.
        energy_learning_rate: learning rate of E^φ.
        forward_looking: add the target's partial energy to E^φ; by default if it exists.
    """

    bootstrap: Literal["proposals", "single-site"] = "proposals"
    sites: int = 8
    energy_learning_rate: float = 1e-3
    forward_looking: bool | None = None

    def __post_init__(self) -> None:
        if self.sites < 1:
            raise ValueError(f"sites must be at least 1, got {self.sites}")
        check_numbers(self, positive=("energy_learning_rate",))


@dataclass(frozen=True)
class EGMOptions(EstimateOptions, RegressionOptions):
    """Options of EGM."""

    def __post_init__(self) -> None:
        EstimateOptions.__post_init__(self)
        RegressionOptions.__post_init__(self)


@dataclass(frozen=True)
class EGMBSOptions(EstimateOptions, RegressionOptions, EnergyOptions, BootstrapOptions):
    """Options of EGM-BS."""

    def __post_init__(self) -> None:
        for group in (EstimateOptions, RegressionOptions, EnergyOptions, BootstrapOptions):
            group.__post_init__(self)


@dataclass(frozen=True)
class EnergyScoreOptions(EstimateOptions, EnergyOptions):
    """Options of methods that learn E^φ alone (BNEM)."""

    def __post_init__(self) -> None:
        EstimateOptions.__post_init__(self)
        EnergyOptions.__post_init__(self)
