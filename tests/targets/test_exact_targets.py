"""Every target with exact draws: they match the energy, spoilt draws do not; energies are batched and finite; log Z."""

import pytest
import torch
from scipy import stats as distributions

from egm.targets import GaussianMixturePosterior, SpikeSlab
from egm.targets.base import Target
from egm.targets.funnel import Funnel
from egm.targets.gbrbm import GBRBM
from egm.targets.gmm import GMM40
from egm.targets.ising import Ising
from egm.targets.joint_mog import JointMoG
from egm.targets.many_well import ManyWell
from egm.targets.potts import Potts
from support.oracles import assert_draws_match_energy
from support.stats import assert_mean

COUPLINGS = [[1.0, -0.5], [0.3, 2.0], [0.0, 1.0]]
DESIGN = [[1.0, 0.2, -0.5], [0.3, 1.0, 0.4], [-0.7, 0.1, 1.0], [0.5, -0.5, 0.5], [0.1, 0.9, -0.2]]
RESPONSE = [1.2, 0.4, -1.5, 0.8, 0.3]
POWERS = torch.tensor([1, 2, 4])

EXACT = {
    "gbrbm": GBRBM,
    "gbrbm-general": lambda: GBRBM(W=COUPLINGS, b=[0.4, -1.0], a=[0.5, -1.0, 2.0], sigma=0.7),
    "joint-mog": lambda: JointMoG(4, sigma=0.6),
    "many-well": lambda: ManyWell(8),
    "gmm40": GMM40,
    "funnel": lambda: Funnel(4),
    "spike-slab": lambda: SpikeSlab(DESIGN, RESPONSE, noise=0.8, slab=1.5, inclusion=0.3),
    "mixture": lambda: GaussianMixturePosterior([-1.0, 0.3, 2.5, 2.0], 3, noise=0.8, prior_scale=2.0),
    "ising": lambda: Ising(3, beta=0.3, field=0.2),
    "potts": lambda: Potts(3, states=3, beta=0.6),
}
exact_targets = pytest.mark.parametrize("make", EXACT.values(), ids=EXACT.keys())


@exact_targets
def test_exact_draws_match_the_energy(make):
    target = make()
    assert target.reference_kind == "exact"
    assert_draws_match_energy(target, target.exact_sample(30_000, seed=1))


def _wider(target: Target, state):
    """Noise 1.1 times too wide: draws pushed away from their conditional mean (here: from their mode) by a tenth."""
    centre = target.modes.centers.float() if isinstance(target, GBRBM | GMM40) else torch.zeros(1, 2)
    name = next(iter(target.space.real))
    mean = centre[torch.cdist(state[name], centre).argmin(-1)]
    return {**state, name: mean + 1.1 * (state[name] - mean)}


@pytest.mark.parametrize(
    ("make", "spoil"),
    [
        (GBRBM, _wider),
        (GMM40, _wider),
        (GBRBM, lambda target, state: {**state, "h": state["h"].flip(-1)}),
        (JointMoG, lambda target, state: {**state, "b": torch.cat([1 - state["b"][:, :1], state["b"][:, 1:]], -1)}),
        (JointMoG, lambda target, state: {**state, "x": 1.1 * state["x"]}),
        # The mode at (5, 5), h = (1, 1, 0), is missing.
        (GBRBM, lambda target, state: {name: x[state["h"] @ POWERS != 3] for name, x in state.items()}),
        (lambda: ManyWell(8), lambda target, state: {"x": state["x"].abs()}),
        (lambda: Funnel(4), lambda target, state: {"x": torch.cat([state["x"][:, :1], 1.1 * state["x"][:, 1:]], -1)}),
        (EXACT["ising"], lambda target, state: {name: 1 - s for name, s in state.items()}),
        (EXACT["mixture"], lambda target, state: {**state, "z": (state["z"] + 1) % 3}),
        (EXACT["spike-slab"], lambda target, state: {**state, "beta": state["beta"] * state["gamma"]}),
    ],
)
def test_wrong_draws_are_rejected(make, spoil):
    target = make()
    with pytest.raises(AssertionError, match="standard errors off"):
        assert_draws_match_energy(target, spoil(target, target.exact_sample(30_000, seed=1)))


@exact_targets
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_energies_are_batched_finite_and_repeatable(make, dtype):
    target = make()
    target.check(dtype=dtype)
    state = target.exact_sample(500, seed=3)
    target.space.check(state)
    assert all(torch.equal(x, target.exact_sample(500, seed=3)[name]) for name, x in state.items())
    assert any(not torch.equal(x, target.exact_sample(500, seed=4)[name]) for name, x in state.items())
    state = {name: x.to(dtype) if x.is_floating_point() else x for name, x in state.items()}
    assert bool(torch.isfinite(target.energy(**state)).all())
    if target.space.real:
        energy, gradient = target.latent_energy_and_gradient(target.space.to_latent(state))
        assert energy.dtype == dtype
        assert all(bool(torch.isfinite(g).all()) for g in gradient.values())
    for values in target.observables(**state).values():
        assert values.shape[0] == 500


@exact_targets
def test_log_z_by_importance_sampling(make):
    """An independent estimate: E[exp(−E)/q] = Z under a Student's t × uniform proposal q that is fitted to draws."""
    target = make()
    fit = target.exact_sample(20_000, seed=5)
    proposal = torch.Generator().manual_seed(6)
    n = 200_000
    state, log_q = {}, torch.zeros(n, dtype=torch.float64)
    for name, variable in target.space.variables.items():
        if name in target.space.categorical:
            state[name] = variable.uniform((n,), generator=proposal)
            log_q -= target.space.categorical[name].log_volume
        else:
            # Student's t with three degrees of freedom has heavier tails than any of these targets but the funnel.
            mean, std = fit[name].double().mean(0), fit[name].double().std(0)
            t = torch.from_numpy(distributions.t.rvs(3, size=(n, *variable.shape), random_state=7))
            log_q += torch.from_numpy(distributions.t.logpdf(t.numpy(), 3)).sum(-1) - std.log().sum()
            state[name] = mean + std * t
    weights = torch.exp(-target.energy(**state).double() - log_q - target.log_z)
    assert_mean(weights, 1.0, f"Z of {target!r}")
