"""LEAPS on lattices whose states can be listed: all states, exact currents, transition matrices."""

from typing import Any

import torch
from torch import nn

from egm.baselines.leaps_chain import Chain, log_step_prob
from egm.networks import LocallyEquivariantConv
from egm.spaces import Categorical, Space
from egm.targets.base import Target
from support.network_cases import randomise


def random_network(size: int, n: int = 2, *, scale: float = 0.05, **options: Any) -> LocallyEquivariantConv:
    """A network in float64 whose parameters are all random; rates are in proportion to `scale`.

    Weights of large random rates vary so much that no number of draws would find their mean.
    """
    space = Space(s=Categorical(n, shape=(size, size)))
    network = randomise(LocallyEquivariantConv(space, {"s": (size, size, n)}, width=8, **options).double())
    with torch.no_grad():
        network.head.weight.mul_(scale)
    return network


def make_chain(network: nn.Module, target: Target, *, sweeps: int = 0) -> Chain:
    """The chain of a network in float64."""
    variable = target.space.categorical["s"]
    return Chain(lambda x, t: network({"s": x}, t.double())["s"], target, "s", variable, sweeps=sweeps)


def states_of(variable: Categorical) -> torch.Tensor:
    """All values of a variable, [n^sites, *shape]."""
    number = torch.arange(variable.size**variable.sites)
    digits = [(number // variable.size**i) % variable.size for i in range(variable.sites)]
    return torch.stack(digits, 1).reshape(-1, *variable.shape)


def number_of(x: torch.Tensor, n: int) -> torch.Tensor:
    """Positions of symbols x [b, *shape] in that list, [b]."""
    flat = x.flatten(1)
    return (flat * n ** torch.arange(flat.shape[1])).sum(1)


def neighbours_of(variable: Categorical) -> torch.Tensor:
    """The number of the state x[i=τ] for every state, site and symbol, [n^sites, sites, n]."""
    x, n = states_of(variable).flatten(1), variable.size
    power = n ** torch.arange(variable.sites)
    return number_of(x, n)[:, None, None] + (torch.arange(n) - x[..., None]) * power[:, None]


class Exact(nn.Module):
    """F of currents that carry p_t ∝ exp(−t E) along: J(x→y) = φ(x) − φ(y) with Σ_y J(x→y) = −∂_t p_t(x).

    The net current is p(x)[F(y|x)]₊ − p(y)[−F(y|x)]₊, so F(y|x) is J/p(x) where J > 0 and J/p(y) elsewhere.
    """

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.variable = target.space.categorical["s"]
        self.energies = target.energy(s=states_of(self.variable)).double()
        self.neighbours = neighbours_of(self.variable)
        states = len(self.energies)
        laplacian = torch.zeros(states, states, dtype=torch.float64)
        laplacian[torch.arange(states)[:, None, None].expand(self.neighbours.shape), self.neighbours] = -1.0
        laplacian.fill_diagonal_(0.0)
        self.inverse = torch.linalg.pinv(laplacian - laplacian.sum(1).diag(), hermitian=True)

    def free_energy(self, t: float) -> float:
        """d/dt log Z_t."""
        return -float(torch.softmax(-t * self.energies, 0) @ self.energies)

    def table(self, t: float) -> torch.Tensor:
        """F [n^sites, *shape, n]."""
        p = torch.softmax(-t * self.energies, 0)
        potential = -self.inverse @ (p * (-self.energies - self.free_energy(t)))
        current = potential[:, None, None] - potential[self.neighbours]
        return (current / torch.where(current > 0, p[:, None, None], p[self.neighbours])).unflatten(
            1, self.variable.shape
        )

    def forward(self, state, t):
        (time,) = set(t.tolist())
        return {"s": self.table(time)[number_of(state["s"], self.variable.size)]}


def step_matrices(chain: Chain, t: float, s: float, h: float) -> tuple[torch.Tensor, torch.Tensor]:
    """K(y | x) and L(y | x) over all states, [x, y], from the log-probabilities that weights are made of."""
    x, neighbours = states_of(chain.variable), neighbours_of(chain.variable).flatten(1)
    everyone = torch.arange(len(x))
    with torch.no_grad():
        rates = chain._rates(x, t, weigh=True)
    found = []
    for backwards in (False, True):
        table, log_stay = rates.step(s, h, backwards=backwards)
        matrix = torch.zeros(len(x), len(x), dtype=torch.float64)
        for jump in range(table.shape[1]):
            made = log_step_prob(table, log_stay, torch.full((len(x), 1), jump), everyone >= 0)
            matrix[everyone, neighbours[:, jump]] += torch.where(table[:, jump] > 0, made.exp(), 0.0)
        matrix[everyone, everyone] = log_stay.exp()
        found.append(matrix)
    return found[0], found[1]
