"""Preconditioning against closed forms: the denoiser of a standard Gaussian, its spread, and rates of jumping."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from egm.networks import EGNN, MLP, LatticeConv, Preconditioned, ResidualMLP, Scalar, SiteMLP, predict
from egm.paths import VE, VP, CondOT, ProductPath, Uniform
from egm.processes import DiscreteJump, Flow, Jump
from egm.spaces import Categorical, Real, Space, State
from support.network_cases import BINS, MIXED, TYPED, denoiser_outputs, draw

HALF_PI = math.pi / 2
#: path: α_t, σ_t² and |σ̇/σ|, written out; VE with its defaults has σ_min = 0.01 and σ_max/σ_min = 200
CLOSED = {
    "condot": (CondOT, lambda t: t, lambda t: (1 - t) ** 2, lambda t: 1 / (1 - t)),
    "ve": (
        VE,
        torch.ones_like,
        lambda t: 1e-4 * (200 ** (2 * (1 - t)) - 1),
        lambda t: math.log(200) / (1 - 200 ** (-2 * (1 - t))),
    ),
    "vp": (
        VP,
        lambda t: torch.sin(HALF_PI * t),
        lambda t: torch.cos(HALF_PI * t) ** 2,
        lambda t: HALF_PI * torch.tan(HALF_PI * t),
    ),
}
PATHS = pytest.mark.parametrize("kind", CLOSED)


class Spy(nn.Module):
    """Remembers what it saw and answers with constants."""

    def __init__(self, **answers: tuple[float, tuple[int, ...]]) -> None:
        super().__init__()
        self.answers, self.seen = answers, {}

    def forward(self, state: State, t: Tensor) -> State:
        self.seen = state
        batch = state["v"].shape[:-1]
        return {
            n: torch.full((*batch, *shape), value, dtype=torch.float64) for n, (value, shape) in self.answers.items()
        }


def product(kind: str, space: Space) -> ProductPath:
    return ProductPath(space, {name: CLOSED[kind][0](variable) for name, variable in space.real.items()})


def some_times(n: int = 5) -> Tensor:
    return torch.linspace(0.02, 0.97, n, dtype=torch.float64)


@PATHS
@pytest.mark.parametrize("body", [MLP, ResidualMLP, SiteMLP, EGNN])
def test_untrained_network_is_the_denoiser_of_the_reference_law(kind, body):
    """E[x_1 | x_t] = α/(α² + σ²) x_t for x_1 ~ N(0, I); uniform symbols; energy zero."""
    space = TYPED if body is EGNN else MIXED
    path = product(kind, space)
    _, alpha, variance, _ = CLOSED[kind]
    network = Preconditioned(body(space, {**denoiser_outputs(space), "energy": ()}, width=8).double(), path)
    state, t = draw(space, (3, 5)), some_times()
    (name,) = space.real
    a = alpha(t).reshape(5, *(1,) * len(space[name].shape))
    s2 = variance(t).reshape(a.shape)
    result = network(state, t)
    torch.testing.assert_close(result[name], a / (a**2 + s2) * state[name], rtol=1e-9, atol=1e-12)
    assert all(bool((result[other] == 0).all()) for other in result if other != name)


@PATHS
def test_inputs_have_unit_variance_and_outputs_the_posterior_spread(kind):
    """The body sees x_t/√v, and an output of one moves the mean by the posterior standard deviation."""
    _, alpha, variance, _ = CLOSED[kind]
    path, t = product(kind, MIXED), some_times()
    state = draw(MIXED, (3, 5))
    a, s2 = alpha(t)[:, None], variance(t)[:, None]
    spies = [Spy(v=(value, (2,)), h=(0.25, (3, 2)), energy=(4.0, ())) for value in (0.0, 1.0)]
    zero, one = (Preconditioned(spy, path)(state, t) for spy in spies)
    torch.testing.assert_close(spies[0].seen["v"], state["v"] / (a**2 + s2).sqrt(), rtol=1e-9, atol=1e-12)
    assert torch.equal(spies[0].seen["h"], state["h"])
    spread = (1 / (1 + a**2 / s2)).sqrt()  # prior precision 1, precision α²/σ² of the observation
    torch.testing.assert_close(one["v"] - zero["v"], spread.expand(3, 5, 2), rtol=1e-8, atol=1e-10)
    assert bool((one["h"] == 0.25).all())
    assert bool((one["energy"] == 4).all())


@PATHS
def test_untrained_jumps_happen_at_the_rate_the_path_narrows(kind):
    path, t = product(kind, MIXED), some_times()
    network = Preconditioned(MLP(MIXED, {"v": (2, BINS), "h": (3, 2)}, width=8).double(), path)
    processes = {"v": Jump(path["v"], bins=BINS), "h": DiscreteJump(path["h"])}  # pyright: ignore[reportArgumentType]
    kernel = predict(network, processes, draw(MIXED, (3, 5)), t)["v"]
    rate = CLOSED[kind][3](t)[:, None]
    torch.testing.assert_close(kernel.sum(-1), rate.expand(3, 5, 2), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(kernel, kernel.flip(-1))
    ends = network(draw(MIXED, (2,)), torch.tensor([0.0, 1.0], dtype=torch.float64))["v"]
    assert bool(torch.isfinite(ends).all())


def test_ends_of_the_path_are_finite():
    for kind in CLOSED:
        network = Preconditioned(ResidualMLP(MIXED, denoiser_outputs(MIXED), width=8), product(kind, MIXED))
        state = {n: x.float() if x.is_floating_point() else x for n, x in draw(MIXED, (2,)).items()}
        result = network(state, torch.tensor([0.0, 1.0]))
        assert all(bool(torch.isfinite(x).all()) for x in result.values())
        torch.testing.assert_close(result["v"][1], state["v"][1])  # nothing is left to denoise at t = 1


def test_path_is_no_part_of_the_parameters_and_copies_work():
    network = Preconditioned(MLP(MIXED, denoiser_outputs(MIXED), width=8), ProductPath(MIXED))
    assert all(name.startswith("body.") for name in network.state_dict())
    assert [name for name, _ in network.named_children()] == ["body"]
    average = torch.optim.swa_utils.AveragedModel(network)
    state = {n: x.float() if x.is_floating_point() else x for n, x in draw(MIXED, (4,)).items()}
    torch.testing.assert_close(average(state, torch.tensor(0.4)), network(state, torch.tensor(0.4)))
    assert copy.deepcopy(network).outputs == denoiser_outputs(MIXED)


def test_energy_network():
    space = Space(s=Categorical(2, shape=(4, 4)))
    energy = Scalar(Preconditioned(LatticeConv(space, {"energy": ()}, width=8, depth=1), ProductPath(space)))
    assert energy(draw(space, (3, 5)), torch.rand(5)).shape == (3, 5)


def test_whole_prediction_of_an_untrained_network():
    """Through `predict`: means, and uniform tables over the legal symbols of each site."""
    space = Space(x=Real(2), c=Categorical([2, 3]))
    path = ProductPath(space, {"c": Uniform(space["c"])})  # pyright: ignore[reportArgumentType]
    network = Preconditioned(ResidualMLP(space, denoiser_outputs(space), width=8), path)
    processes = {"x": Flow(path["x"]), "c": DiscreteJump(path["c"])}  # pyright: ignore[reportArgumentType]
    state = path.prior_sample((5,), 0.5, generator=torch.Generator().manual_seed(0))
    result = predict(network, processes, state, 0.5)
    torch.testing.assert_close(result["x"], state["x"])  # α/v = 1 at t = ½
    torch.testing.assert_close(result["c"][0], torch.tensor([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]]))


def test_bad_arguments():
    body = MLP(MIXED, {"energy": ()}, width=8)
    with pytest.raises(TypeError, match="path must be a ProductPath, got CondOT"):
        Preconditioned(body, CondOT(Real(2)))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="the network was built for"):
        Preconditioned(body, ProductPath(TYPED))
