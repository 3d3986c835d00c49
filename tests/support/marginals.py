"""Targets whose marginal generators and intermediate energies are known exactly, on every kind of space."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from egm.paths import CondOT, DiscretePath, GaussianPath, Masked, ProductPath
from egm.processes import DiscreteJump, Flow
from egm.spaces import Categorical, Real, Space, State
from egm.targets import Ising, Target


@dataclass
class TinyIsing:
    """The 2×2 Ising model on a discrete path, by enumeration of its 16 states."""

    path_class: type[DiscretePath] = Masked
    beta: float = 0.4

    def __post_init__(self) -> None:
        self.target = Ising(2, self.beta)
        self.path = ProductPath(self.target.space, {"s": self.path_class(self.target.space.categorical["s"])})
        self.processes = {"s": DiscreteJump(self.path["s"])}  # type: ignore[arg-type]
        self.states = torch.cartesian_prod(*[torch.arange(2)] * 4).reshape(16, 2, 2)

    def start(self) -> State:
        hidden = self.path["s"].alphabet - 1  # type: ignore[union-attr]
        return {"s": torch.tensor([[hidden, 1], [1, hidden]])}

    def _log_joint(self, s: Tensor, t: Tensor) -> Tensor:
        """log p_{t|1}(s | x_1) − E(x_1) for each of the 16 states x_1, [..., 16]."""
        shape = (*s.shape[:-2], 16, 2, 2)
        x_t, x_1 = s[..., None, :, :].expand(shape), self.states.expand(shape)
        return self.path["s"].log_prob(x_t, x_1, t[..., None]) - self.target.energy(s=self.states).double()

    def energy(self, state: State, r: Tensor) -> Tensor:
        """E_r, the target's energy at r = 1."""
        if float(r) == 1:
            return self.target.energy(**state).double()
        return -torch.logsumexp(self._log_joint(state["s"], torch.as_tensor(r, dtype=torch.float64)), -1)

    def prediction(self, state: State, t: Tensor) -> State:
        posterior = torch.softmax(self._log_joint(state["s"], t), -1)
        return {"s": torch.einsum("...k,kijz->...ijz", posterior, torch.nn.functional.one_hot(self.states).double())}


@dataclass
class LabelledGaussians:
    """p(x, b) ∝ π_b N(x; μ_b, s²): one real and (with more than one component) one categorical variable."""

    path_class: type[GaussianPath] = CondOT
    label_path: type[DiscretePath] = Masked
    masses: tuple[float, ...] = (0.3, 0.7)
    means: tuple[float, ...] = (0.8, -0.9)
    s2: float = 0.2

    def __post_init__(self) -> None:
        labelled = {"b": Categorical(len(self.masses))} if len(self.masses) > 1 else {}
        self.space = Space(x=Real(()), **labelled)
        paths = {"x": self.path_class(self.space.real["x"])}
        paths |= {name: self.label_path(v) for name, v in self.space.categorical.items()}
        self.path = ProductPath(self.space, paths)  # type: ignore[arg-type]
        self.processes = {"x": Flow(self.path["x"])}  # type: ignore[arg-type]
        self.processes |= {name: DiscreteJump(self.path[name]) for name in labelled}  # type: ignore[arg-type]
        self.target = Target(self.space, self._target_energy)

    def _target_energy(self, x: Tensor, b: Tensor | None = None) -> Tensor:
        masses, means = torch.tensor(self.masses).to(x), torch.tensor(self.means).to(x)
        b = torch.zeros(x.shape, dtype=torch.int64) if b is None else b
        return (x - means[b]).square() / (2 * self.s2) - masses.log()[b] - 3.0

    def start(self) -> State:
        state = {"x": torch.tensor(0.1, dtype=torch.float64)}
        return state | {name: torch.tensor(self.path[name].alphabet - 1) for name in self.space.categorical}  # type: ignore[union-attr]

    def _log_joint(self, state: State, t: Tensor) -> tuple[Tensor, Tensor]:
        """log p̃_t(x, b_t, b_1 = k) for each component k, [..., K], and E[x_1 | x_t, k]."""
        path, x = self.path["x"], state["x"][..., None]
        alpha, sigma2 = path.alpha(t)[..., None], path.variance(t)[..., None]  # type: ignore[union-attr]
        means = torch.tensor(self.means, dtype=torch.float64)
        variance = alpha**2 * self.s2 + sigma2
        log_joint = -((x - alpha * means) ** 2) / (2 * variance) - 0.5 * torch.log(variance / self.s2)
        log_joint = log_joint + torch.tensor(self.masses, dtype=torch.float64).log() + 3.0
        for name in self.space.categorical:
            b_t = state[name][..., None].expand(log_joint.shape)
            labels = torch.arange(len(self.masses)).expand(log_joint.shape)
            log_joint = log_joint + self.path[name].log_prob(b_t, labels, t[..., None])
        return log_joint, means + alpha * self.s2 / variance * (x - alpha * means)

    def energy(self, state: State, r: Tensor) -> Tensor:
        """E_r in latent coordinates, the target's energy at r = 1."""
        if float(r) == 1:
            return self.target.latent_energy(state)
        return -torch.logsumexp(self._log_joint(state, torch.as_tensor(r, dtype=torch.float64))[0], -1)

    def prediction(self, state: State, t: Tensor) -> State:
        log_joint, means = self._log_joint(state, t)
        posterior = torch.softmax(log_joint, -1)
        found = {"x": (posterior * means).sum(-1)}
        return found | dict.fromkeys(self.space.categorical, posterior)

    @property
    def log_z(self) -> float:
        return 3.0 + math.log(sum(self.masses)) + 0.5 * math.log(2 * math.pi * self.s2)
