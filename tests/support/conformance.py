"""The conformance matrix: small targets with exact laws, the cells that train on them, and how a run is scored.

Each problem has a distance from draws to its exact law (0 at the law; DRAWS exact draws are about .02 to .04 away):

    continuous   x ∈ R², a mixture of two Gaussians: the largest W1 between projections on four directions
    discrete     s ∈ {0,1}^{2×2}, Ising with a field: total variation over the 16 states
    mixed        b of three labels, x ∈ R Gaussian given b: TV of b + Σ_b π_b W1(x | b), so x must go with its label

`PYTHONPATH=tests python -m support.calibrate_conformance` trains every cell with the calibration seeds and writes
`conformance.json`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import egm
from egm.methods.registry import METHODS
from egm.metrics import w1
from support.training import fit

DRAWS = 4000
EXACT_DRAWS = 20_000
#: networks and optimiser of every cell
COMMON: dict[str, Any] = {
    "steps": 400,
    "batch_size": 128,
    "proposals": 64,
    "epsilon": 0.2,
    "energy_target": "direct",
    "learning_rate": 1e-2,
    "final_learning_rate": 3e-4,
    "energy_learning_rate": 1e-2,
    "energy_ema": 0.95,
    "ema": 0.98,
    "inner_steps": 50,
    "refresh": 500,
    "buffer": 2000,
    "sample_steps": 50,
    "log_every": 1000,
}
NETWORK = "MLP(width=48, depth=2)"


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------------- problems


@dataclass(frozen=True)
class Problem:
    """A target, the distance of draws to its law, and draws of laws that are nearly right and must be told apart."""

    target: egm.Target
    distance: Callable[[egm.State], float]
    near_misses: dict[str, egm.State]


def _two_modes() -> Problem:
    # centred, and of about unit size in the long direction: the reference law is what a user would choose
    means, masses, scale = torch.tensor([[1.4, -0.84], [-0.6, 0.36]]), torch.tensor([0.3, 0.7]), 0.35
    directions = torch.tensor([[1.0, 0.0], [0.0, 1.0], [math.sqrt(0.5)] * 2, [math.sqrt(0.5), -math.sqrt(0.5)]])

    def energy(x: Tensor) -> Tensor:
        square = (x[..., None, :] - means.to(x)).square().sum(-1) / (2 * scale**2)
        return -torch.logsumexp(masses.to(x).log() - square, -1)

    def draws(n: int, seed: int, masses: Tensor = masses, scale: float = scale) -> egm.State:
        generator = _generator(seed)
        mode = torch.multinomial(masses, n, replacement=True, generator=generator)
        return {"x": means[mode] + scale * torch.randn(n, 2, generator=generator)}

    exact = draws(EXACT_DRAWS, 0)["x"] @ directions.T

    def distance(state: egm.State) -> float:
        found = state["x"] @ directions.T
        return max(w1(found[:, i], exact[:, i]) for i in range(len(directions)))

    near_misses = {
        "equal masses": draws(DRAWS, 1, masses=torch.tensor([0.5, 0.5])),
        "one mode": draws(DRAWS, 1, masses=torch.tensor([0.0, 1.0])),
        "modes twice as wide": draws(DRAWS, 1, scale=2 * scale),
    }
    return Problem(egm.Target(egm.Space(x=egm.Real(2)), energy), distance, near_misses)


def _ising() -> Problem:
    target = egm.targets.Ising(2, 0.3, field=0.4)
    states = torch.cartesian_prod(*[torch.arange(2)] * 4).reshape(16, 2, 2)

    def probabilities(beta: float, field: float) -> Tensor:
        return torch.softmax(-egm.targets.Ising(2, beta, field=field).energy(s=states).double(), 0)

    exact = probabilities(0.3, 0.4)

    def distance(state: egm.State) -> float:
        number = (state["s"].flatten(1) * torch.tensor([8, 4, 2, 1])).sum(-1)
        share = torch.bincount(number, minlength=16).double() / len(number)
        return float((share - exact).abs().sum() / 2)

    def draws(law: Tensor) -> egm.State:
        return {"s": states[torch.multinomial(law, DRAWS, replacement=True, generator=_generator(1))]}

    spins = 2.0 * states.flatten(1) - 1
    up = (1 + exact @ spins.double()) / 2
    independent = torch.where(spins > 0, up, 1 - up).prod(-1)
    near_misses = {
        "independent spins": draws(independent),
        "field reversed": draws(probabilities(0.3, -0.4)),
        "no field": draws(probabilities(0.3, 0.0)),
        "half as cold": draws(probabilities(0.15, 0.4)),
    }
    return Problem(target, distance, near_misses)


def _labelled() -> Problem:
    means, masses, scale = torch.tensor([-1.2, 0.1, 1.1]), torch.tensor([0.2, 0.5, 0.3]), 0.3

    def energy(x: Tensor, b: Tensor) -> Tensor:
        return (x - means.to(x)[b]).square() / (2 * scale**2) - masses.to(x).log()[b]

    def draws(n: int, seed: int) -> egm.State:
        generator = _generator(seed)
        b = torch.multinomial(masses, n, replacement=True, generator=generator)
        return {"x": means[b] + scale * torch.randn(n, generator=generator), "b": b}

    exact = draws(EXACT_DRAWS, 0)

    def distance(state: egm.State) -> float:
        share = torch.bincount(state["b"], minlength=3) / len(state["b"])
        total = float((share - masses).abs().sum() / 2)
        for label in range(3):
            chosen = state["b"] == label
            if not bool(chosen.any()):
                return math.inf
            total += float(masses[label]) * w1(state["x"][chosen], exact["x"][exact["b"] == label])
        return total

    one, other = draws(DRAWS, 1), draws(DRAWS, 2)
    near_misses = {
        "label independent of x": {"x": one["x"], "b": other["b"]},
        "labels reversed": {"x": one["x"], "b": 2 - one["b"]},
        "one law of x for all labels": {
            "x": one["x"].mean() + scale * torch.randn(DRAWS, generator=_generator(3)),
            "b": one["b"],
        },
    }
    space = egm.Space(x=egm.Real(()), b=egm.Categorical(3, shape=()))
    return Problem(egm.Target(space, energy), distance, near_misses)


PROBLEMS = {"continuous": _two_modes(), "discrete": _ising(), "mixed": _labelled()}


# ---------------------------------------------------------------------- cells


@dataclass(frozen=True)
class Cell:
    """One run: a problem, a method, the process and path of every variable, and what differs from COMMON."""

    problem: str
    method: str
    dynamics: dict[str, tuple[str, str]]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        followed = ", ".join(f"{process} on {path}" for process, path in self.dynamics.values())
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.problem} {self.method}: {followed}" + (f"; {options}" if options else "")

    @property
    def combination(self) -> "Cell":
        """The same space, paths, processes and proposals by EGM: cells that share it share their controls."""
        return replace(self, method="egm", options={k: v for k, v in self.options.items() if k in ("proposal", *JUMPS)})

    def train(self, seed: int, target: egm.Target | None = None, **overrides: Any) -> egm.Sampler:
        """Train, on the problem's target unless another is given."""
        known = METHODS[self.method].option_names
        common = {name: value for name, value in COMMON.items() if name in ("steps", *known)}
        return fit(
            target or PROBLEMS[self.problem].target, self.method,
            paths={name: path for name, (_, path) in self.dynamics.items()},
            processes={name: process for name, (process, _) in self.dynamics.items()},
            network=NETWORK, energy_network=NETWORK if self.method == "egm-bs" else None,
            seed=seed, device="cpu", progress=False, **{**common, **self.options, **overrides},
        )  # fmt: skip

    def score(self, sampler: egm.Sampler, seed: int) -> float:
        """Distance of DRAWS draws to the exact law; `seed` is the seed of training, draws have another."""
        return PROBLEMS[self.problem].distance(sampler.sample(DRAWS, seed=10_000 + seed).state)

    def uniform_target(self) -> egm.Target:
        """The target on the same space under which all proposals weigh the same.

        Flat proposals have the weights e^{−E}, proposals of the reference law e^{−E}/p_ref.
        """
        space = PROBLEMS[self.problem].target.space
        flat = self.options.get("proposal") == "flat"

        def energy(**state: Tensor) -> Tensor:
            log_prob = space.reference_log_prob(state)
            return torch.zeros_like(log_prob) if flat else -log_prob

        return egm.Target(space, energy)


def _cells() -> list[Cell]:
    def real(process: str, path: str, method: str, **options: Any) -> Cell:
        return Cell("continuous", method, {"x": (process, path)}, options)

    def symbols(path: str, method: str, **options: Any) -> Cell:
        return Cell("discrete", method, {"s": ("DiscreteJump", path)}, options)

    def mixed(process: str, path: str, label_path: str, method: str, **options: Any) -> Cell:
        return Cell("mixed", method, {"x": (process, path), "b": ("DiscreteJump", label_path)}, options)

    egm_, bs, cosine = "egm", "egm-bs", "Masked(schedule=Cosine())"
    single, bootstrapped = {"bootstrap": "single-site"}, {"energy_target": "bootstrap", "epsilon": 0.35}
    return [
        real("Diffusion", "CondOT", egm_),
        real("Diffusion", "VE", egm_, proposal="flat", real_loss="generator"),
        real("Diffusion", "VP", bs, energy_target="direct"),
        real("Flow", "CondOT", egm_, real_loss="generator"),
        real("Flow", "CondOT", bs, real_loss="denoiser", **bootstrapped),
        real("Flow", "VE", bs, proposal="flat", real_loss="generator"),
        real(JUMP, "CondOT", egm_, **JUMPS),
        symbols("Masked", egm_, symbol_loss="cross-entropy"),
        symbols("Masked", bs, bootstrap="proposals", symbol_loss="squared"),
        symbols("Masked", bs, **single),
        symbols(cosine, egm_, symbol_loss="squared"),
        symbols(cosine, bs, **single, energy_target="bootstrap"),
        symbols(cosine, bs, **single, energy_target="bootstrap", forward_looking=False),
        symbols("Uniform", egm_),
        symbols("Uniform", bs, symbol_loss="squared"),
        symbols("Uniform", bs, **bootstrapped),
        mixed("Diffusion", "CondOT", "Masked", egm_),
        mixed("Diffusion", "CondOT", "Masked", bs),
        mixed("Diffusion", "CondOT", "Masked", bs, **single),
        mixed("Diffusion", "VP", "Uniform", egm_),
        mixed("Diffusion", "VP", "Uniform", bs),
        mixed("Flow", "VE", cosine, egm_, proposal="flat"),
        mixed("Flow", "VE", cosine, bs, proposal="flat", **single, **bootstrapped),
        mixed("Flow", "CondOT", "Uniform", egm_),
        mixed("Flow", "CondOT", "Uniform", bs, symbol_loss="squared"),
        mixed(JUMP, "CondOT", "Masked", egm_, **JUMPS),
        mixed(JUMP, "VP", "Uniform", egm_, **JUMPS),
    ]


JUMP = "Jump(bins=24, limit=3.0)"
#: a jump kernel starts uniform over its bins, and log-rates have several nats to go
JUMPS: dict[str, Any] = {"learning_rate": 3e-2, "batch_size": 64}
CELLS = {str(cell): cell for cell in _cells()}
COMBINATIONS = {str(cell.combination): cell.combination for cell in CELLS.values()}
