"""DW4, JointDW4, LJ13, LJ55: energies against their formulas, log Z and moments against quadrature, references."""

import itertools
import math

import numpy as np
import pytest
import torch

import egm
from egm.mcmc import HMC, make_reference, run
from egm.targets.base import Target
from egm.targets.particles import DW4, LJ13, LJ55, JointDW4, pair_distances
from support.oracles import dw4_log_z, energy_moments, four_particle_log_z, joint_dw4_log_z
from support.stats import assert_mean

TARGETS = [DW4, JointDW4, LJ13, LJ55]
every_target = pytest.mark.parametrize("make", TARGETS, ids=lambda make: make.__name__)
B, C = [[-3.0, -2.5], [-2.5, -2.8]], [[0.8, 0.4], [0.4, 0.6]]


def _states(target: Target, n: int, seed: int = 0):
    """Random states without close pairs, float64."""
    generator = torch.Generator().manual_seed(seed)
    state = target.space.reference_sample(n, generator=generator, dtype=torch.float64)
    if isinstance(target, LJ13 | LJ55):
        state = {"x": target.lattice_start(n, seed=seed)["x"].double()}
    return state


def _by_the_formula(target: Target, x: np.ndarray, types: np.ndarray | None = None) -> float:
    """The energy of one state, pair by pair."""
    total = 0.0
    for i, j in itertools.combinations(range(len(x)), 2):
        d = math.dist(x[i], x[j])
        if isinstance(target, DW4):
            total += 0.9 * (d - 4) ** 4 - 4 * (d - 4) ** 2
        elif types is not None:
            total += 0.5 * (B[types[i]][types[j]] * (d - 2) ** 2 + C[types[i]][types[j]] * (d - 2) ** 4)
        else:
            total += 2 * (d**-12 - 2 * d**-6)
    if isinstance(target, LJ13 | LJ55):
        total += 0.5 * float(((x - x.mean(0)) ** 2).sum())
    return total


# ---------------------------------------------------------------------- energies


@every_target
def test_energy_is_the_formula(make):
    target = make()
    state = _states(target, 20)
    arrays = {name: x.numpy() for name, x in state.items()}
    expected = [_by_the_formula(target, **{name: x[k] for name, x in arrays.items()}) for k in range(20)]
    np.testing.assert_allclose(target.energy(**state), expected, rtol=1e-10)


@every_target
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_check_passes(make, dtype):
    make().check(dtype=dtype)


@every_target
def test_energy_has_its_symmetries(make):
    target = make()
    state = _states(target, 50)
    energy = target.energy(**state)
    n, dim = target.space["x"].shape
    generator = torch.Generator().manual_seed(1)
    orthogonal = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q
    flip = torch.ones(dim, dtype=torch.float64)
    flip[0] = -1
    order = torch.randperm(n, generator=generator)
    images = {
        "rotation": {**state, "x": state["x"] @ orthogonal},
        "reflection": {**state, "x": state["x"] * flip},
        "permutation": {name: x[:, order] for name, x in state.items()},
    }
    assert tuple(images) == target.symmetries
    images["translation"] = {**state, "x": state["x"] + 1.5}
    for name, image in images.items():
        torch.testing.assert_close(target.energy(**image), energy, msg=f"{target!r} changes under {name}")


@every_target
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coinciding_and_distant_particles_never_give_nan(make, dtype):
    target = make()
    start = {name: x[0] for name, x in _states(target, 1).items()}
    gaps = [0.0, 1e-38, 1e-20, 1e-10, 1e-6, 1e-4, 1e-3, 3e-3, 4e-3, 1e-2, 0.1, 1.0, 1e4, 1e12, 1e25]
    x = start["x"].to(dtype).repeat(len(gaps), 1, 1)
    x[:, 1] = x[:, 0]
    x[:, 1, 0] += torch.tensor(gaps, dtype=dtype)
    state = {**{name: value.expand(len(gaps), *value.shape) for name, value in start.items()}, "x": x.requires_grad_()}
    energy = target.energy(**state)
    assert not bool(energy.isnan().any())
    assert not bool((energy == -math.inf).any())
    (gradient,) = torch.autograd.grad(energy.sum(), x)
    energy = energy.detach()
    finite = energy.isfinite()
    assert bool(gradient[finite].isfinite().all())
    assert bool(finite[gaps.index(0.1)])
    if isinstance(target, LJ13 | LJ55):
        assert float(energy[0]) == math.inf
        assert bool(finite[gaps.index(1e-2)])
    else:
        assert bool(finite[0])


def test_all_particles_in_one_place():
    x = torch.zeros(4, 2, requires_grad=True)
    energy = DW4().energy(x=x)
    assert float(energy.detach()) == pytest.approx(6 * (0.9 * 256 - 64), rel=1e-6)
    assert torch.autograd.grad(energy, x)[0].tolist() == [[0.0, 0.0]] * 4
    assert float(LJ13().energy(x=torch.zeros(13, 3))) == math.inf


@pytest.mark.parametrize(
    ("make", "scale"),
    [(DW4, 2.1344), (JointDW4, 1.2859), (LJ13, 0.5812), (LJ55, 0.9400)],
)
def test_scale_is_declared_from_the_pair_energy(make, scale):
    variable = make().space.real["x"]
    assert variable.centered
    assert variable.scale == pytest.approx(scale, abs=1e-4)


def test_observables():
    x = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
    x = x - x.mean(0)
    assert pair_distances(x).tolist() == [3.0, 4.0, 5.0, 5.0, 4.0, 3.0]
    shown = JointDW4().observables(x=x, types=torch.tensor([1, 0, 1, 1]))
    assert shown["distances"].tolist() == [3.0, 3.0, 4.0, 4.0, 5.0, 5.0]
    assert float(shown["radius"]) == pytest.approx(2.5)
    assert shown["type_counts"].tolist() == [1.0, 3.0]
    assert set(DW4().observables(x=x)) == set(LJ13().observables(x=LJ13().lattice_start(1)["x"][0]))
    assert JointDW4().observables(x=x.expand(3, 2, 4, 2), types=torch.zeros(3, 2, 4).long())["radius"].shape == (3, 2)


# ---------------------------------------------------------------------- log Z and moments


def test_the_oracle_on_springs():
    """u_ij = ½k_ij d² is Gaussian: with L the weighted graph Laplacian, Z = (2π)³ / (product of L's non-zero
    eigenvalues), once the eigenvalue zero of the centre of mass is left out.
    """
    stiffness = np.array([[0, 1.0, 0.5, 2.0], [1.0, 0, 1.5, 0.7], [0.5, 1.5, 0, 1.2], [2.0, 0.7, 1.2, 0]])
    laplacian = np.diag(stiffness.sum(0)) - stiffness
    expected = 3 * math.log(2 * math.pi) - np.log(np.linalg.eigvalsh(laplacian)[1:]).sum()
    found = four_particle_log_z(lambda d, i, j: 0.5 * stiffness[i, j] * d**2, reach=8.0, step=1 / 10)
    assert found == pytest.approx(expected, abs=1e-5)


def test_dw4_log_z_and_moments_by_quadrature():
    assert DW4().log_z == pytest.approx(dw4_log_z(), abs=1e-6)
    assert DW4().log_z == pytest.approx(29.667232, abs=1e-6)
    mean, sd = energy_moments(dw4_log_z)
    assert mean == pytest.approx(-22.541508, abs=1e-4)
    assert sd == pytest.approx(1.905073, abs=1e-4)


@pytest.mark.slow
def test_joint_dw4_log_z_and_moments_by_quadrature():
    found = joint_dw4_log_z(steps=(1 / 8, 1 / 12))
    assert JointDW4().log_z == pytest.approx(found, abs=5e-6)
    assert found == pytest.approx(18.82118, abs=1e-5)
    mean, sd = energy_moments(joint_dw4_log_z)
    assert mean == pytest.approx(-7.8170, abs=1e-3)
    assert sd == pytest.approx(1.6242, abs=1e-3)


@pytest.mark.parametrize("make", [DW4, JointDW4])
def test_log_z_refers_to_the_reference_law_of_the_space(make):
    """E[exp(−E)/p_ref] = Z under p_ref: the conventions of the centred subspace agree with those of `Space`."""
    target = make()
    generator = torch.Generator().manual_seed(2)
    state = target.space.reference_sample(400_000, generator=generator, dtype=torch.float64)
    assert_mean(torch.exp(-target.energy(**state) - target.space.reference_log_prob(state) - target.log_z), 1.0)


# ---------------------------------------------------------------------- references


@pytest.mark.slow
@pytest.mark.parametrize(("make", "mean", "sd"), [(DW4, -22.5415, 1.9051), (JointDW4, -7.8170, 1.6242)])
def test_reference_has_the_exact_energy_moments(make, mean, sd):
    target = make()
    reference = make_reference(target, target._reference_plan())
    found = reference.diagnostics["observables"]
    assert found["energy"]["mean"] == pytest.approx(mean, abs=0.02)
    assert found["energy"]["sd"] == pytest.approx(sd, abs=0.03)
    assert found["energy"]["stderr"] < 0.007
    assert max(observable["r_hat"] for observable in found.values()) < 1.01


def test_lj13_chains_start_where_they_can_move():
    target = LJ13()
    chains = egm.fit(target, "tempering", steps=30, warmup=60, chains=4, replicas=4, seed=0, progress=False)
    assert float(target.energy(**chains.sample(100, seed=1).state).max()) < 0
    reference = target.space.reference_sample(100, generator=torch.Generator().manual_seed(0))
    assert float(target.energy(**reference).median()) > 1e4  # where others start
    another = egm.fit(target, "tempering", steps=30, warmup=60, chains=4, replicas=4, seed=1, progress=False)
    assert not torch.equal(another.sample(5, seed=1)["x"], chains.sample(5, seed=1)["x"])


@pytest.mark.slow
def test_lj13_chains_reach_equilibrium_from_the_lattice():
    target = LJ13()
    start = target.lattice_start(32)
    assert target.space.check(start) == (32,)
    kernel = HMC(target, leapfrog_steps=20)
    chains = run(target, kernel, chains=32, warmup=100, steps=50, thin=2, init=start)
    assert float(chains.energy.mean()) == pytest.approx(-43.1, abs=1.0)
    # The lattice itself is far from equilibrium.
    assert float(target.energy(**start).mean()) > -35


@pytest.mark.parametrize(("target", "bound"), [(DW4(), 10.0), (LJ13(), 0.0)])
def test_chains_start_where_forces_are_not_steep(target, bound):
    def start(seed):
        generator = torch.Generator().manual_seed(seed)
        return target.chain_start(64, generator=generator, device="cpu", dtype=torch.float64)

    x = start(0)["x"]
    assert x.shape == (64, *target.space["x"].shape)
    assert x.dtype == torch.float64
    assert float(x.mean(-2).abs().max()) < 1e-5
    assert float(target.energy(x=x).max()) < bound
    law = target.space.reference_sample(64, generator=torch.Generator().manual_seed(0))
    assert float(target.energy(**law).max()) > 100 + bound
    assert torch.equal(start(0)["x"], x)
    assert not torch.equal(start(1)["x"], x)
    assert not torch.equal(x[0], x[1])
