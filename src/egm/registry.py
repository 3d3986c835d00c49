"""What can be named: methods, targets, paths, schedules and processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from egm import paths, processes, targets
from egm.baselines.bnem import BNEM
from egm.baselines.chain_options import CHAIN_METHODS, ChainOptions
from egm.baselines.leaps import TRAINING, Leaps, LeapsOptions, LeapsSampler, default_network
from egm.baselines.pis import PIS, PISOptions
from egm.methods.base import Method
from egm.methods.egm import EGM
from egm.methods.egm_options import EGMOptions
from egm.methods.self_proposal import SelfProposal, SPOptions
from egm.sampler import Sampler
from egm.targets.base import Target
from egm.train.options import TrainingOptions


@dataclass(frozen=True)
class MethodKind:
    """What `egm.fit` has to know of a method.

    Attributes:
        about: what it does, in a line.
        method: its class.
        options: the class of its own options, beside those of the loop.
        defaults: options of either class whose defaults differ.
        path, process: of real variables, unless others are given.
        symbol_path: of symbols, unless others are given.
        network: gives the network of a target as an expression; by default one that suits its space.
        sampler: what is trained.
        learns_energy: whether it trains E^φ beside the sampler's network.
        network_is_energy: whether the sampler's network is E^φ itself.
        t_min: the time at which simulations begin, where that is not an option.
        ignores: options of its class that mean nothing to it; they are refused.
        needs_reals: whether there is nothing to it without real variables.
    """

    about: str
    method: type[Method]
    options: type
    defaults: Mapping[str, Any] = field(default_factory=dict)
    path: str = "CondOT"
    process: str = "Diffusion"
    symbol_path: str = "Masked"
    network: Callable[[Target], str] | None = None
    sampler: type[Sampler] = Sampler
    learns_energy: bool = False
    network_is_energy: bool = False
    t_min: float | None = None
    ignores: tuple[str, ...] = ()
    needs_reals: bool = False


BOOTSTRAP = (
    *("epsilon", "bootstrap", "sites", "energy_target", "energy_learning_rate", "energy_ema", "energy_ema_start"),
    *("clip_energy", "forward_looking"),
)
SAMPLER_LOSS = (
    *("estimator", "real_loss", "symbol_loss", "lambda_disc", "lambda_cont", "time_weight", "bootstrap", "sites"),
    *("energy_learning_rate", "forward_looking"),
)
LEAPS: dict[str, Any] = {
    **{"method": Leaps, "options": LeapsOptions, "defaults": TRAINING},
    **{"symbol_path": "Uniform", "network": default_network, "sampler": LeapsSampler, "t_min": 0.0},
}
METHODS: dict[str, MethodKind] = {
    "egm": MethodKind(
        "importance sampling of the generator by proposals of the end point", EGM, EGMOptions, ignores=BOOTSTRAP
    ),
    "egm-bs": MethodKind(
        "the same by proposals a short time ahead, weighted by a learned intermediate energy",
        EGM,
        EGMOptions,
        learns_energy=True,
    ),
    "egm-sp": MethodKind(
        "the sampler's own draws, weighted exactly, with tempering by their effective sample size (default)",
        SelfProposal,
        SPOptions,
        {
            **{"batch_size": 1024, "inner_steps": 20, "refresh": 2048, "buffer": 4 * 2048, "weight_decay": 0.0},
            "symmetries": True,
        },
        t_min=0.0,  # path weights have no singular times
    ),
    "iefm": MethodKind("baseline iEFM: EGM with a flow on the conditional optimal transport path", EGM, EGMOptions,
                       process="Flow", ignores=BOOTSTRAP, needs_reals=True),
    "idem": MethodKind(
        "baseline iDEM: EGM on the variance exploding path, averaging the target's score",
        EGM,
        EGMOptions,
        {"estimator": "scores", "proposal": "flat"},
        path="VE",
        ignores=BOOTSTRAP,
    ),
    "bnem": MethodKind(
        "baseline BNEM: a learned intermediate energy alone, whose gradient is the sampler's score",
        BNEM,
        EGMOptions,
        path="VE",
        network_is_energy=True,
        ignores=SAMPLER_LOSS,
    ),
    "pis": MethodKind(
        "baseline PIS: gradients of the evidence lower bound through the simulation of a controlled Brownian motion",
        PIS,
        PISOptions,
        path="Foellmer",
    ),
    "leaps": MethodKind(
        "baseline LEAPS: jumps at single sites along an annealed path, by a locally equivariant network of rates",
        **LEAPS,
    ),
    "leaps-mcmc": MethodKind("the same with Gibbs sweeps between the jumps", **LEAPS),
}  # fmt: skip
OPTION_GROUPS = {
    "training loop": TrainingOptions,
    "EGM and EGM-BS, iEFM, iDEM, BNEM": EGMOptions,
    "EGM-SP": SPOptions,
    "PIS": PISOptions,
    "LEAPS": LeapsOptions,
    "chains (gibbs, mala, swendsen-wang, tempering)": ChainOptions,
}
METHOD_NAMES = (*METHODS, *CHAIN_METHODS)
PATHS = {
    "CondOT": paths.CondOT,
    "VE": paths.VE,
    "VP": paths.VP,
    "Foellmer": paths.Foellmer,
    "Masked": paths.Masked,
    "Uniform": paths.Uniform,
}
SCHEDULES = {"Polynomial": paths.Polynomial, "Cosine": paths.Cosine}
PROCESSES = {
    "Flow": processes.Flow,
    "Diffusion": processes.Diffusion,
    "Jump": processes.Jump,
    "DiscreteJump": processes.DiscreteJump,
}
TARGETS: dict[str, type[Target]] = {
    name: getattr(targets, name) for name in targets.__all__ if name not in ("Target", "EnergyError")
}
