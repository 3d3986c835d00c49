"""LEAPS: local equivariance, the generator term and weights by enumeration, training, runs on disk, energy calls."""

from typing import Any

import pytest
import torch
from torch import nn

from egm import targets
from egm.baselines.leaps_chain import Chain, generator_term, log_step_prob
from egm.networks import LocallyEquivariantConv, Symmetrised
from egm.spaces import Categorical, Space
from egm.targets.base import Target
from network_cases import randomise

TINY: dict[str, Any] = {
    **{"batch_size": 8, "inner_steps": 6, "refresh": 4, "buffer": 40, "sample_steps": 7, "log_every": 7},
    **{"checkpoint_every": 10, "network": "LocallyEquivariantConv(width=8, depth=1)", "device": "cpu"},
    "progress": False,
}


def states_of(variable: Categorical) -> torch.Tensor:
    """All values of a variable, [n^sites, *shape]."""
    number = torch.arange(variable.size**variable.sites)
    digits = [(number // variable.size**i) % variable.size for i in range(variable.sites)]
    return torch.stack(digits, 1).reshape(-1, *variable.shape)


def neighbours_of(variable: Categorical) -> torch.Tensor:
    """The number of the state x[i=τ] for every state, site and symbol, [n^sites, sites, n]."""
    x, n = states_of(variable).flatten(1), variable.size
    power = n ** torch.arange(variable.sites)
    own = (x * power).sum(1)
    return own[:, None, None] + (torch.arange(n) - x[..., None]) * power[:, None]


def random_network(
    size: int, n: int = 2, *, seed: int = 0, scale: float = 1.0, **options: Any
) -> LocallyEquivariantConv:
    space = Space(s=Categorical(n, shape=(size, size)))
    network = randomise(LocallyEquivariantConv(space, {"s": (size, size, n)}, width=8, **options).double(), seed)
    with torch.no_grad():
        network.head.weight.mul_(scale)
    return network


def make_chain(network: nn.Module, target: Target, *, sweeps: int = 0) -> Chain:
    return Chain(
        lambda x, t: network({"s": x}, t.double())["s"], target, "s", target.space.categorical["s"], sweeps=sweeps
    )


# ---------------------------------------------------------------------- the network


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("size", "n", "options"),
    [(2, 2, {}), (3, 2, {"depth": 3}), (3, 3, {"positions": True}), (4, 3, {}), (5, 2, {"positions": True})],
)
def test_local_equivariance_is_exact(size, n, options, wrapped):
    network: nn.Module = random_network(size, n, **options)
    if wrapped:
        network = Symmetrised(network, ("symbol-shift",))
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(n, (6, size, size), generator=generator)
    t = torch.rand(6, generator=generator, dtype=torch.float64)
    there = network({"s": x}, t)["s"].flatten(1, 2)
    assert (there.gather(2, x.flatten(1)[..., None]) == 0).all()
    assert (there.abs() > 1e-3).any()
    for site in range(size**2):
        for symbol in range(n):
            y = x.flatten(1).clone()
            y[:, site] = symbol
            back = network({"s": y.reshape(x.shape)}, t)["s"].flatten(1, 2)
            reverse = back[:, site].gather(1, x.flatten(1)[:, site : site + 1])[:, 0]
            # averages over shifts add in another order; the network itself is blind to the last bit
            torch.testing.assert_close(there[:, site, symbol], -reverse, rtol=0, atol=1e-14 if wrapped else 0)
            moved = y != x.flatten(1)
            others = [i for i in range(size**2) if i != site]
            if bool(moved.any()):  # not for lack of looking: every other site sees this one
                assert ((back != there)[moved.any(1)][:, others].any(-1)).all()


def test_a_centre_that_is_seen_is_not_equivariant():
    network = random_network(3)
    network.centre.fill_(1.0)
    x, t = torch.zeros(1, 3, 3, dtype=torch.int64), torch.zeros(1, dtype=torch.float64)
    y = x.clone()
    y[0, 1, 1] = 1
    forth, back = network({"s": x}, t)["s"][0, 1, 1, 1], network({"s": y}, t)["s"][0, 1, 1, 0]
    assert abs(float((forth + back).detach())) > 1e-3


def test_networks_of_other_spaces_are_refused():
    with pytest.raises(ValueError, match=r"square grid.*shape=\(2, 3\)"):
        LocallyEquivariantConv(Space(s=Categorical(2, shape=(2, 3))), {"s": (2, 3, 2)})
    with pytest.raises(ValueError, match="single Categorical variable"):
        LocallyEquivariantConv(Space(s=Categorical(2, shape=(2, 2)), r=Categorical(2, shape=(2, 2))), {"s": (2, 2, 2)})


# ---------------------------------------------------------------------- energies of all sites


@pytest.mark.parametrize(
    "target",
    [
        targets.Ising(2, 0.7), targets.Ising(3, 0.3, field=0.4), targets.Ising(4, 0.5, J=-1.0),
        targets.Potts(3, 3, 0.8), targets.SpinGlass(4, 1, 0.9), targets.SpinGlass(5, 0, 0.4),
    ],
    ids=repr,
)  # fmt: skip
def test_conditional_energies_of_all_sites(target):
    x = torch.randint(target.states, (5, target.size, target.size), generator=torch.Generator().manual_seed(0))
    found = make_chain(nn.Identity(), target).energies(x)
    assert target.energy_calls == 5 * target.size**2 * target.states
    each = [target.conditional_energies({"s": x}, "s", (site,))[..., 0] for site in range(target.size**2)]
    torch.testing.assert_close(found.flatten(1, 2), torch.stack(each, -1).movedim(0, -1))
    # the way that other targets go: from complete energies
    own = Target(target.space, lambda s: target.energy(s=s))
    plain = make_chain(nn.Identity(), own).differences(x)
    torch.testing.assert_close(make_chain(nn.Identity(), target).differences(x), plain, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------- the generator term


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
        self.laplacian = torch.zeros(states, states, dtype=torch.float64)
        rows = torch.arange(states)[:, None, None].expand(self.neighbours.shape)
        self.laplacian[rows, self.neighbours] = -1.0
        self.laplacian.fill_diagonal_(0.0)
        self.laplacian -= self.laplacian.sum(1).diag()
        self.inverse = torch.linalg.pinv(self.laplacian, hermitian=True)

    def free_energy(self, t: float) -> float:
        """d/dt log Z_t."""
        return -float(torch.softmax(-t * self.energies, 0) @ self.energies)

    def table(self, t: float) -> torch.Tensor:
        """F [n^sites, sites, n]."""
        p = torch.softmax(-t * self.energies, 0)
        potential = -self.inverse @ (p * (-self.energies - self.free_energy(t)))
        current = potential[:, None, None] - potential[self.neighbours]
        return current / torch.where(current > 0, p[:, None, None], p[self.neighbours])

    def forward(self, state, t):
        x = state["s"]
        number = (x.flatten(1) * self.variable.size ** torch.arange(self.variable.sites)).sum(1)
        (time,) = set(t.tolist())
        return {"s": self.table(time)[number].reshape(*x.shape, -1)}


@pytest.mark.parametrize(
    "target", [targets.Ising(2, 0.6), targets.Ising(3, 0.4, field=0.2), targets.Potts(2, 3, 0.9)], ids=repr
)
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_the_residual_vanishes_for_exact_currents(target, t):
    exact = Exact(target)
    x = states_of(exact.variable)
    F = exact.table(t).reshape(*x.shape, -1)
    differences = make_chain(exact, target).differences(x)
    times = torch.full((len(x),), t, dtype=torch.float64)

    def residual(F: torch.Tensor, sign: float = 1.0) -> float:
        return float(
            (-exact.energies - sign * generator_term(F, differences, times) - exact.free_energy(t)).abs().max()
        )

    assert residual(F) < 1e-4  # energies are float32
    assert residual(-F) > 0.5
    assert residual(F, sign=-1.0) > 0.5


def test_weights_of_exact_currents_are_nearly_equal():
    """And the nearer the shorter the steps; a chain whose backward rates have the wrong sign is not."""
    target = targets.Ising(2, 0.6)
    chain, spread = make_chain(Exact(target), target), {}
    for steps in (8, 32, 128):
        x = torch.randint(2, (500, 2, 2), generator=torch.Generator().manual_seed(0))
        x, log_ratio = chain.run(x, steps=steps, generator=torch.Generator().manual_seed(1))
        log_w = log_ratio - target.energy(s=x).double()
        spread[steps] = float(log_w.std())
    print(spread)


# ---------------------------------------------------------------------- the weights


def kernel_matrices(network: nn.Module, target: Target, t: float, h: float) -> tuple[torch.Tensor, torch.Tensor]:
    """K(y | x) and L(y | x) as matrices [x, y] over all states, from the log-probabilities that weights are made of."""
    variable = target.space.categorical["s"]
    x, neighbours = states_of(variable), neighbours_of(variable).flatten(1)
    rates = make_chain(network, target)._rates(x, t, weigh=True)
    found = []
    for backwards in (False, True):
        table, log_stay = rates.step(t, h, backwards=backwards)
        matrix = torch.zeros(len(x), len(x), dtype=torch.float64)
        for jump in range(table.shape[1]):
            index = torch.full((len(x), 1), jump)
            made = log_step_prob(table, log_stay, index, torch.ones(len(x), dtype=torch.bool)).exp()
            matrix[torch.arange(len(x)), neighbours[:, jump]] += made
        matrix.diagonal().copy_(log_stay.exp())
        found.append(matrix)
    return found[0], found[1]
