"""GBRBM, JointMoG, ManyWell, GMM40, Funnel: log Z, modes and moments by quadrature and closed form, input errors."""

import math

import numpy as np
import pytest
import torch
from scipy import stats as distributions

from egm.targets.funnel import Funnel
from egm.targets.gbrbm import GBRBM
from egm.targets.gmm import GMM40
from egm.targets.joint_mog import JointMoG
from egm.targets.many_well import ManyWell, double_well
from support.oracles import log_integral
from support.stats import assert_counts, assert_mean, assert_same_distribution, assert_variance

# ---------------------------------------------------------------------- GBRBM


def test_gbrbm_log_z_and_masses_by_quadrature():
    target = GBRBM()
    assert target.log_z == pytest.approx(4.26997, abs=5e-6)
    # A grid over v that covers every mode by eight standard deviations, and all eight hidden states.
    axis = torch.arange(-14, 14.01, 0.1, dtype=torch.float64)
    v = torch.cartesian_prod(axis, axis)
    hidden = torch.cartesian_prod(*[torch.arange(2)] * 3)
    energies = torch.stack([target.energy(v=v, h=h.expand(len(v), 3)) for h in hidden])
    density = torch.exp(-energies).sum(0) * 0.1**2
    assert math.log(float(density.sum())) == pytest.approx(target.log_z, abs=1e-9)
    mode = target.observables(v=v, h=hidden[0].expand(len(v), 3))["mode"]
    assert set(mode.tolist()) == {-1, 0, 1, 2, 3, 4, 5}  # the grid reaches beyond every mode
    share = torch.zeros(7, dtype=torch.float64).index_add_(0, mode + 1, density)[1:] / density.sum()
    # Cells are not quite components: two per cent of a component lies across the half-way line at 2.5 σ.
    assert float((share - target.modes.masses).abs().max()) < 0.01


def test_gbrbm_has_six_modes_with_their_exact_masses():
    modes = GBRBM().modes
    centers, masses = modes.centers, modes.masses
    # b·h + ½‖Wh‖²: 0 at the origin, ½ with one unit on, 1 with two in different directions.
    weight = {(0, 0): 1, (5, 0): math.exp(0.5), (-5, 0): math.exp(0.5), (0, 5): math.exp(0.5)}
    weight |= {(5, 5): math.e, (-5, 5): math.e}
    found = {tuple(int(c) for c in center): float(mass) for center, mass in zip(centers, masses, strict=True)}
    assert found == pytest.approx({center: w / sum(weight.values()) for center, w in weight.items()}, abs=1e-9)
    state = GBRBM().exact_sample(20_000, seed=2)
    # Which component a draw came from is known from h.
    components = modes.assign(5.0 * torch.stack([state["h"][:, 0] - state["h"][:, 2], state["h"][:, 1]], -1).double())
    assert_counts(torch.bincount(components, minlength=6), masses)
    assert_mean(state["v"], masses @ centers)


def test_gbrbm_as_printed_has_one_mode():
    target = GBRBM.as_printed()
    centers, masses = target.modes.centers, target.modes.masses
    assert float(masses[0]) > 0.999
    assert centers.tolist() == [[10.0, 5.0]]
    assert repr(target) == "GBRBM(W=((5.0, 0.0, 5.0), (0.0, 5.0, 0.0)), b=-5.0)"
    v, h = torch.tensor([1.0, 2.0]), torch.tensor([1, 1, 0])
    coupling = torch.tensor([[10.0, 0.0, 10.0], [0.0, 10.0, 0.0]])
    printed = 0.5 * v.square().sum() + 5 * h.sum() - 0.5 * v @ coupling @ h.float()
    assert float(target.energy(v=v, h=h)) == pytest.approx(float(printed))


def test_gbrbm_declares_its_scale_from_its_parameters():
    target = GBRBM(W=[[2.0, 4.0], [0.0, 1.0]], a=[1.0, -1.0], sigma=0.5)
    assert target.space.real["v"].loc == (1.0 + 3.0, -1.0 + 0.5)
    assert target.space.real["v"].scale == pytest.approx(math.sqrt(0.25 + 20 / 4))


def test_gbrbm_with_many_hidden_units_has_an_energy_but_no_exact_answers():
    target = GBRBM(W=torch.ones(2, 21), b=-1.0)
    target.check()
    assert target.log_z is None
    assert "mode" not in target.observables(**target.space.reference_sample(3))
    with pytest.raises(NotImplementedError, match="no exact sampler"):
        target.exact_sample(10)
    with pytest.raises(ValueError, match=r"21 hidden units have 2\^21 states.*at most 20"):
        _ = target.modes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"W": [1.0, 2.0]}, r"W must be a matrix \[visible, hidden\], got shape \(2,\)"),
        ({"W": [[math.nan]]}, "W must be finite"),
        ({"b": [1.0, 2.0]}, r"b must be a number or have shape \[3\] to match W, got shape \(2,\)"),
        ({"a": [1.0, 2.0, 3.0]}, r"a must be a number or have shape \[2\] to match W"),
        ({"sigma": 0.0}, "sigma must be positive and finite, got 0.0"),
        ({"sigma": -1.0}, "sigma must be positive and finite, got -1.0"),
    ],
)
def test_gbrbm_rejects_bad_parameters(arguments, message):
    with pytest.raises(ValueError, match=message):
        GBRBM(**arguments)


# ---------------------------------------------------------------------- JointMoG


def test_joint_mog_log_z_and_moments():
    target = JointMoG()
    assert target.log_z == pytest.approx(4.08113, abs=5e-6)

    def one_dimension(x):
        return np.logaddexp(-((x - 1) ** 2) / 0.18, -((x + 1) ** 2) / 0.18)

    assert target.log_z == pytest.approx(10 * log_integral(one_dimension, -5, 5), abs=1e-9)
    state = target.exact_sample(20_000, seed=1)
    assert_mean(state["b"], 0.5)
    assert_variance(state["x"], 1 + 0.3**2)
    assert_mean(target.energy(**state), 5.0)  # ½ a dimension
    assert target.space.real["x"].scale == pytest.approx(math.sqrt(1.09))
    energy = target.energy(x=torch.full((10,), 0.7), b=torch.tensor([1] * 9 + [0]))
    assert float(energy) == pytest.approx((9 * 0.3**2 + 1.7**2) / 0.18, rel=1e-5)


def test_joint_mog_rejects_bad_parameters():
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        JointMoG(0)
    with pytest.raises(ValueError, match="sigma must be positive and finite, got nan"):
        JointMoG(sigma=math.nan)


# ---------------------------------------------------------------------- ManyWell


def _log_double_well(y):
    return -(y**4) + 6 * y**2 + 0.5 * y


def test_many_well_log_z_by_quadrature():
    assert ManyWell().log_z == pytest.approx(164.695675, abs=5e-7)
    pair = log_integral(_log_double_well, -5, 5) + 0.5 * math.log(2 * math.pi)
    assert ManyWell().log_z == pytest.approx(16 * pair, abs=1e-9)
    assert ManyWell(6).log_z == pytest.approx(3 * pair, abs=1e-9)


def test_many_well_draws_follow_the_distribution_function():
    x = ManyWell(4).exact_sample(50_000, seed=1)["x"].double()
    grid = np.linspace(-4, 4, 4001)
    cumulative = np.exp(_log_double_well(grid)).cumsum()
    expected = lambda y: np.interp(y, grid + grid[1] / 2 - grid[0] / 2, cumulative / cumulative[-1])  # noqa: E731
    for column, distribution in ((0, expected), (2, expected), (1, "norm"), (3, "norm")):
        assert distributions.kstest(x[:, column].numpy(), distribution).pvalue > 1e-4
    assert_same_distribution(x[:, 0], x[:, 2])


def test_many_well_observables():
    target = ManyWell(32)
    state = target.exact_sample(20_000, seed=2)
    shown = target.observables(**state)
    y = np.linspace(-5, 5, 100_001)
    density = np.exp(_log_double_well(y) - 9)
    left = density[y < 0].sum() / density.sum()
    assert left == pytest.approx(0.1557, abs=5e-5)
    assert shown["left"].shape == (20_000, 16)
    assert_mean(shown["left"], left)
    assert_counts(torch.bincount(shown["mode"], minlength=4), np.kron([left, 1 - left], [left, 1 - left]))
    x = torch.zeros(32)
    x[0], x[2] = 1.7, -1.7
    assert int(target.observables(x=x)["mode"]) == 1
    x[0], x[2] = -1.7, 1.7
    assert int(target.observables(x=x)["mode"]) == 2


def test_many_well_overflows_to_infinity():
    assert double_well(torch.tensor([1e30, -1e30, 1e12])).tolist() == [math.inf] * 3


def test_many_well_needs_an_even_dimension():
    with pytest.raises(ValueError, match=r"dim must be even .* got 5; use 6"):
        ManyWell(5)
    with pytest.raises(ValueError, match="dim must be at least 2, got 0"):
        ManyWell(0)
    assert (repr(ManyWell()), repr(ManyWell(6))) == ("ManyWell()", "ManyWell(dim=6)")


# ---------------------------------------------------------------------- GMM40


def test_gmm40_is_the_published_benchmark():
    target = GMM40()
    before = torch.get_rng_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        means = (torch.rand(40, 2) - 0.5) * 80
    assert torch.equal(target.means, means)
    GMM40()
    assert torch.equal(torch.get_rng_state(), before)
    x = target.exact_sample(50, seed=0)["x"].double()
    std = float(torch.nn.functional.softplus(torch.ones(())))
    components = distributions.norm.logpdf(x[:, None, :], means.double(), std).sum(-1)
    expected = -(np.logaddexp.reduce(components, 1) - math.log(40))
    np.testing.assert_allclose(target.energy(x=x), expected, rtol=1e-6)


def test_gmm40_draws_and_modes():
    target = GMM40()
    state = target.exact_sample(20_000, seed=1)
    centers, masses = target.modes.centers, target.modes.masses
    assert_mean(state["x"], masses @ centers)
    assert_variance(state["x"], centers.var(0, correction=0) + math.log1p(math.e) ** 2)
    assert float(masses.sum()) == pytest.approx(1)
    assert target.observables(x=centers.float())["mode"].tolist() == list(range(40))
    # The cell of the nearest mean holds about 1/40 each; means closer than 2 σ blur that, so only the total is sharp.
    mode = target.observables(**state)["mode"]
    assert 0 < int((mode == -1).sum()) < 40  # a share of e^-8 lies beyond four standard deviations
    assert int(torch.bincount(mode + 1, minlength=41)[1:].min()) > 200


def test_gmm40_keeps_its_means_in_double_precision_runs():
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(GMM40().means.float(), GMM40().means)
        assert GMM40().exact_sample(3)["x"].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


# ---------------------------------------------------------------------- Funnel


def test_funnel_is_the_stated_product():
    target = Funnel()
    x = target.exact_sample(20_000, seed=1)["x"].double()
    array = x.numpy()
    log_density = distributions.norm.logpdf(array[:, 0], scale=3)
    log_density += distributions.norm.logpdf(array[:, 1:], scale=np.exp(array[:, :1] / 2)).sum(-1)
    np.testing.assert_allclose(target.energy(x=x), -log_density, rtol=1e-9)
    assert_mean(x[:, 0], 0.0)
    assert_variance(x[:, 0], 9.0)
    standard = x[:, 1:] * torch.exp(-x[:, :1] / 2)
    assert_variance(standard, 1.0)
    assert target.space.real["x"].scale == pytest.approx((3.0, *[math.exp(2.25)] * 9))
    with pytest.raises(ValueError, match="dim must be at least 2"):
        Funnel(1)


def test_chains_of_the_funnel_do_not_start_in_its_neck():
    target = Funnel()

    def start(seed):
        generator = torch.Generator().manual_seed(seed)
        return target.chain_start(1000, generator=generator, device="cpu", dtype=torch.float64)["x"]

    law = target.space.reference_sample(1000, generator=torch.Generator().manual_seed(0))
    assert float(target.energy(x=start(0)).quantile(0.9)) < 100
    assert float(target.energy(**law).quantile(0.9)) > 1000
    assert start(0).dtype == torch.float64
    assert torch.equal(start(0), start(0))
    assert not torch.equal(start(0), start(1))
