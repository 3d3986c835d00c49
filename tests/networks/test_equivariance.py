"""Symmetries, with every parameter random: translations of LatticeConv, rotations and permutations of EGNN."""

import pytest
import torch
from torch import Tensor

from egm.networks import EGNN, LatticeConv
from egm.networks.lattice import wrap
from egm.spaces import Categorical, Real, Space, State
from support.network_cases import GRID, GRIDS, PARTICLES, TYPED, denoiser_outputs, draw, randomise

BATCH = (6,)
LINE = Space(s=Categorical(2, shape=(1, 4)))


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-9, atol=1e-9)


def evaluate(network: torch.nn.Module, state: State) -> State:
    t = torch.linspace(0.05, 0.95, BATCH[0], dtype=torch.float64)
    with torch.no_grad():
        return network(state, t)


# ------------------------------------------------------------------ lattices


@pytest.mark.parametrize(
    ("space", "kernel"), [(GRID, 3), (GRID, 9), (GRID, 1), (GRIDS, 3), (GRIDS, 5), (LINE, 3)], ids=str
)
@pytest.mark.parametrize("shift", [(1, 0), (0, 1), (-1, 2)])
def test_lattice_network_commutes_with_translations(space, kernel, shift):
    outputs = {**denoiser_outputs(space), "energy": ()}
    outputs |= {name: (*v.latent_shape, 4) for name, v in space.real.items()}
    network = randomise(LatticeConv(space, outputs, width=8, depth=2, kernel=kernel).double())
    state = draw(space, BATCH)
    before = evaluate(network, state)
    after = evaluate(network, {name: torch.roll(x, shift, (1, 2)) for name, x in state.items()})
    assert close(after["energy"], before["energy"])
    assert float(before["energy"].std()) > 1e-3
    for name in space:
        assert close(after[name], torch.roll(before[name], shift, (1, 2)))
        if shift == (0, 1):
            assert not close(after[name], before[name])


def test_lattice_network_tells_rows_from_columns_and_left_from_right():
    """The convolution is not symmetric by accident: reflections and transposition change what it says."""
    space = Space(s=Categorical(2, shape=(4, 4)))
    network = randomise(LatticeConv(space, {"s": (4, 4, 2)}, width=8, depth=1).double())
    s = draw(space, BATCH)["s"]
    before = evaluate(network, {"s": s})["s"]
    for change in (lambda x: x.flip(1), lambda x: x.flip(2), lambda x: x.transpose(1, 2)):
        assert not close(evaluate(network, {"s": change(s)})["s"], change(before))


@pytest.mark.parametrize("depth", [1, 3])
def test_lattice_network_reaches_neighbours_and_the_mean(depth):
    """Three steps away a site matters through the mean alone, wherever it is, unless there are three blocks."""
    space = Space(s=Categorical(2, shape=(7, 7)))
    network = randomise(LatticeConv(space, {"s": (7, 7, 2)}, width=8, depth=depth).double())
    base = torch.zeros(7, 7, dtype=torch.int64)
    changed = []
    for site in ((3, 4), (6, 3), (0, 0), (0, 6)):
        s = base.clone()
        s[site] = 1
        changed.append(network({"s": s}, torch.tensor(0.5))["s"][3, 3])
    near, *far = changed
    assert not torch.allclose(near, far[0], atol=1e-6)
    assert all(torch.allclose(other, far[0], atol=1e-10) for other in far) == (depth == 1)
    assert not torch.allclose(far[0], network({"s": base}, torch.tensor(0.5))["s"][3, 3], atol=1e-8)


def test_wrap():
    x = torch.arange(6.0).reshape(1, 2, 3, 1)
    for margin in (0, 1, 2):
        expected = torch.nn.functional.pad(x[..., 0], (margin,) * 4, mode="circular")
        assert torch.equal(wrap(x, margin)[..., 0], expected)


def test_scalars_are_sums_over_sites():
    """A periodic repetition of a state has the energy of its period times the number of periods."""
    small, large = Space(s=Categorical(2, shape=(2, 3))), Space(s=Categorical(2, shape=(4, 9)))
    networks = [randomise(LatticeConv(space, {"energy": ()}, width=8, depth=2).double()) for space in (small, large)]
    s = draw(small, BATCH)["s"]
    one, six = evaluate(networks[0], {"s": s}), evaluate(networks[1], {"s": s.repeat(1, 2, 3)})
    assert close(6 * one["energy"], six["energy"])


# ------------------------------------------------------------------ particles


def orthogonal(dimension: int, *, reflect: bool) -> Tensor:
    generator = torch.Generator().manual_seed(dimension)
    q, _ = torch.linalg.qr(torch.randn(dimension, dimension, generator=generator, dtype=torch.float64))
    determinant = torch.linalg.det(q)
    return q * torch.where(torch.arange(dimension) == 0, -determinant if reflect else determinant, 1.0)


def particle_network(space: Space) -> EGNN:
    return randomise(EGNN(space, {**denoiser_outputs(space), "energy": ()}, width=16, depth=3).double())


@pytest.mark.parametrize("space", [PARTICLES, TYPED], ids=["plain", "typed"])
@pytest.mark.parametrize("reflect", [False, True])
def test_particles_rotate_and_reflect(space, reflect):
    network, state = particle_network(space), draw(space, BATCH)
    rotation = orthogonal(space["x"].shape[1], reflect=reflect)
    assert float(torch.linalg.det(rotation)) == pytest.approx(-1.0 if reflect else 1.0)
    before, after = evaluate(network, state), evaluate(network, {**state, "x": state["x"] @ rotation.T})
    assert close(after["x"], before["x"] @ rotation.T)
    assert not close(after["x"], before["x"])
    for name in before.keys() - {"x"}:
        assert close(after[name], before[name])
        assert float(before[name].std(0).max()) > 1e-3


@pytest.mark.parametrize("space", [PARTICLES, TYPED], ids=["plain", "typed"])
def test_particles_permute(space):
    network, state = particle_network(space), draw(space, BATCH)
    order = torch.tensor([2, 0, 1, *range(3, space["x"].shape[0])])
    before, after = evaluate(network, state), evaluate(network, {name: x[:, order] for name, x in state.items()})
    assert close(after["energy"], before["energy"])
    for name in space:
        assert close(after[name], before[name][:, order])
        assert not close(after[name], before[name])


def test_particles_keep_their_centre_and_feel_their_types():
    network, state = particle_network(TYPED), draw(TYPED, BATCH)
    before = evaluate(network, state)
    assert float(before["x"].mean(1).abs().max()) < 1e-12
    assert float(before["x"].abs().max()) > 1e-2
    for name in ("types", "spin"):
        other = evaluate(network, {**state, name: (state[name] + 1) % 2})
        assert all(not close(other[output], before[output]) for output in before)


def test_particles_move_with_a_translation():
    """Distances alone enter, so a shifted frame gives the same displacement."""
    space = Space(x=Real((4, 2), centered=True))
    network, state = particle_network(space), draw(space, BATCH)
    shifted = evaluate(network, {"x": state["x"] + torch.tensor([3.0, -1.0])})
    assert close(shifted["x"], evaluate(network, state)["x"])


def test_coinciding_particles_have_finite_gradients():
    network = particle_network(PARTICLES)
    x = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    result = network({"x": x}, torch.tensor(0.5))
    (gradient,) = torch.autograd.grad(result["energy"] + result["x"].square().sum(), x)
    assert bool(torch.isfinite(gradient).all())


def test_scalars_are_sums_over_particles():
    """Particles at one point are alike and messages are means, so the energy counts them."""
    energies = []
    for particles in (2, 6):
        space = Space(x=Real((particles, 2), centered=True))
        network = randomise(EGNN(space, {"energy": ()}, width=16, depth=2).double())
        state = {"x": torch.zeros(*BATCH, particles, 2, dtype=torch.float64)}
        energies.append(evaluate(network, state)["energy"])
    assert close(3 * energies[0], energies[1])
