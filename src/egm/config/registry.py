"""What can be named: methods, targets, paths, schedules and processes, those of the library and those of its users.

Runs are written down by names (`egm.config.build`), and nothing that a file names is imported. So a part of one's own
is registered, by `register` or `register_method`, before it is named: in `egm.fit`, `egm.load`, a recipe or a command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from egm import paths, processes, targets
from egm.baselines.bnem import BNEM
from egm.baselines.chain_options import CHAIN_METHODS, ChainOptions
from egm.baselines.leaps import TRAINING, Leaps, LeapsOptions, LeapsSampler, default_network
from egm.baselines.pis import PIS, PISOptions
from egm.methods.base import Method
from egm.methods.egm import EGM
from egm.methods.egm_options import EGMOptions
from egm.methods.self_proposal import SelfProposal, SPOptions
from egm.paths.product import AnyPath
from egm.sampler import Sampler
from egm.targets.base import Target
from egm.train.options import TrainingOptions
from egm.util.expressions import normal_form


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
    *("epsilon", "opening", "bootstrap", "sites", "energy_target", "energy_learning_rate", "energy_ema"),
    *("energy_ema_start", "clip_energy", "forward_looking"),
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
PATHS: dict[str, type[AnyPath]] = {
    "CondOT": paths.CondOT,
    "VE": paths.VE,
    "VP": paths.VP,
    "Foellmer": paths.Foellmer,
    "Masked": paths.Masked,
    "Uniform": paths.Uniform,
}
SCHEDULES: dict[str, type[paths.Schedule]] = {"Polynomial": paths.Polynomial, "Cosine": paths.Cosine}
PROCESSES: dict[str, type[processes.Process[Any]]] = {
    "Flow": processes.Flow,
    "Diffusion": processes.Diffusion,
    "Jump": processes.Jump,
    "DiscreteJump": processes.DiscreteJump,
}
TARGETS: dict[str, type[Target]] = {
    name: getattr(targets, name) for name in targets.__all__ if name not in ("Target", "EnergyError")
}

KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "target": (Target, TARGETS),
    "path": (paths.Path, PATHS),
    "schedule": (paths.Schedule, SCHEDULES),
    "process": (processes.Process, PROCESSES),
}
BUILT_IN = {normal_form(name) for table in (*(t for _, t in KINDS.values()), METHODS, CHAIN_METHODS) for name in table}
Part = TypeVar("Part", bound=type)


def method_names() -> tuple[str, ...]:
    """Every method, those that train networks first."""
    return (*METHODS, *CHAIN_METHODS)


def method_kind(name: str) -> MethodKind:
    """What is known of a method that a run names."""
    if name not in METHODS:
        raise ValueError(
            f"the method '{name}' is not known here ({', '.join(METHODS)}); import the module that registers it, on the"
            " command line by --target module:function"
        )
    return METHODS[name]


def option_names() -> list[str]:
    """Every option of the loop and of a method."""
    return [option.name for group in OPTION_GROUPS.values() for option in fields(group)]


def register(part: Part) -> Part:
    """Let a class of one's own be named: a `Target`, `Path`, `Schedule` or `Process`; serves as a decorator.

    Its name is that of the class. Options are keyword-only and kept as attributes of the same names (a target writes
    them in its `repr`), because that is how a run writes them down. One's own names may be registered again.
    """
    table = next((table for base, table in KINDS.values() if isinstance(part, type) and issubclass(part, base)), None)
    if table is None:
        raise TypeError(f"a {' or '.join(KINDS)} can be registered, got {part!r}; methods have register_method")
    _require_own(part.__name__)
    table[part.__name__] = part
    return part


def register_method(name: str, kind: MethodKind) -> None:
    """Let `egm.fit(target, name)` find a method of one's own; the names of its options must be new."""
    _require_own(name)
    others = {title: group for title, group in OPTION_GROUPS.items() if title != name}
    own = {} if kind.options in others.values() else {name: kind.options}
    for title, group in others.items() if own else ():
        if taken := {option.name for option in fields(group)} & {option.name for option in fields(kind.options)}:
            raise ValueError(f"{', '.join(sorted(taken))} of '{name}' is an option of {title}; choose another name")
    OPTION_GROUPS.pop(name, None)  # of an earlier registration
    OPTION_GROUPS.update(own)
    METHODS[name] = kind


def _require_own(name: str) -> None:
    if normal_form(name) in BUILT_IN:
        raise ValueError(f"'{name}' is a name of the library's own; choose another one")
