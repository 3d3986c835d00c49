"""Which network a space gets, and what a user's module may and may not return."""

import pytest
import torch
from torch import nn

from egm import targets
from egm.config.parts import default_network
from egm.networks import EGNN, MLP, LatticeConv, ResidualMLP, Scalar, SiteMLP, default_body, predict
from egm.paths import ProductPath
from egm.processes import DiscreteJump, Flow, Jump
from egm.spaces import Categorical, Real, Space, State
from support.network_cases import MIXED, denoiser_outputs, draw, fake_tensors

PATH = ProductPath(MIXED)
PROCESSES = {"v": Flow(PATH["v"]), "h": DiscreteJump(PATH["h"])}  # pyright: ignore[reportArgumentType]
DESIGN = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("space", "body"),
    [
        (targets.GBRBM().space, ResidualMLP),
        (targets.Ising(size=5, beta=0.4).space, LatticeConv),
        (targets.Ising(size=4, beta=0.4).space, LatticeConv),
        (targets.Ising(size=3, beta=0.2).space, MLP),
        (targets.JointMoG().space, SiteMLP),
        (targets.JointDW4().space, EGNN),
        (targets.DW4().space, EGNN),
        (targets.ManyWell().space, SiteMLP),
        (targets.SpikeSlab(DESIGN, DESIGN[:, 0]).space, ResidualMLP),
        (Space(s=Categorical(2, shape=(4, 5)), k=Categorical(3, shape=(4, 5))), LatticeConv),
        (Space(s=Categorical(2, shape=(4, 5)), k=Categorical(3, shape=(5, 4))), MLP),
        (Space(s=Categorical(2, shape=(4, 4, 4))), MLP),
        (Space(s=Categorical(2, shape=(4, 4)), y=Real((4, 4))), SiteMLP),
        (Space(x=Real((4, 2), centered=True), k=Categorical(2, shape=5)), SiteMLP),
        (Space(x=Real((4, 2), centered=True), y=Real(1)), ResidualMLP),
        (Space(x=Real((4, 2))), ResidualMLP),
    ],
    ids=str,
)
def test_default_network(space, body):
    outputs = denoiser_outputs(space)
    assert default_body(space) is body
    network = body(space, outputs, width=8, depth=1)
    assert (network.width, network.depth) == (8, 1)
    state = ProductPath(space).prior_sample((2,), 0.5, generator=torch.Generator().manual_seed(0))
    assert {n: tuple(x.shape[1:]) for n, x in network(state, torch.rand(2)).items()} == outputs


@pytest.mark.parametrize(
    ("target", "network"),
    [
        (targets.Ising(4, 0.4), "LatticeConv"),
        (targets.SpinGlass(4, 0, 1.0), "MLP"),  # declares no translation: its sites differ
        (targets.Target(Space(s=Categorical(2, shape=(4, 4))), lambda s: s.sum((-1, -2)).float()), "LatticeConv"),
    ],
    ids=str,
)
def test_sites_that_differ_have_no_convolution(target, network):
    assert default_network(target) == network


class Answer(nn.Module):
    """A user's module that returns a given result."""

    def __init__(self, result: object) -> None:
        super().__init__()
        self.result, self.t = result, torch.zeros(())

    def forward(self, state, t):
        self.t = t
        return self.result


def good() -> dict[str, torch.Tensor]:
    return {"v": torch.ones(5, 2), "h": torch.tensor([0.0, 2.0]).expand(5, 3, 2)}


def test_predict_links_each_output():
    result = predict(Answer({**good(), "more": None}), PROCESSES, draw(MIXED, (5,)), torch.rand(5))
    assert result.keys() == {"v", "h"}
    assert bool((result["v"] == 1).all())
    torch.testing.assert_close(result["h"][..., 1], torch.full((5, 3), 2.0).sigmoid())


def test_predict_takes_numbers_as_times():
    network = Answer(good())
    predict(network, PROCESSES, draw(MIXED, (5,)), 0.25)
    assert network.t.shape == ()
    assert network.t.dtype == torch.float64  # that of the state
    assert float(network.t) == 0.25


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (torch.ones(5, 2), TypeError, r"must return a dict with .* each variable \['v', 'h'\], got Tensor"),
        (None, TypeError, "got NoneType"),
        ({"v": good()["v"]}, ValueError, r"no output for the variable 'h', only for \['v'\]"),
        ({**good(), "v": torch.ones(5, 3)}, ValueError, r"'v' has shape \(5, 3\), but Flow needs \(5, 2\)"),
        ({**good(), "v": torch.ones(2)}, ValueError, r"'v' has shape \(2,\)"),
        ({**good(), "v": torch.ones(1, 2)}, ValueError, r"'v' has shape \(1, 2\)"),
        ({**good(), "h": torch.ones(5, 3)}, ValueError, r"'h' has shape \(5, 3\), but DiscreteJump needs \(5, 3, 2\)"),
        ({**good(), "h": torch.ones(5, 3, 3)}, ValueError, r"'h' has shape \(5, 3, 3\)"),
        ({**good(), "h": torch.ones(5, 3, 2).int()}, TypeError, r"'h' must be a floating-point .*int32"),
        ({**good(), "h": [0.0]}, TypeError, "'h' must be a floating-point tensor, got list"),
    ],
)  # fmt: skip
def test_predict_says_what_is_wrong(result, error, message):
    with pytest.raises(error, match=message):
        predict(Answer(result), PROCESSES, draw(MIXED, (5,)), torch.rand(5))


def test_predict_knows_the_batch_of_a_jump_kernel():
    """bins equal to the number of coordinates, and to the batch: only the number of axes tells them apart."""
    space = Space(v=Real(3))
    path = ProductPath(space)
    processes = {"v": Jump(path["v"], bins=3)}  # pyright: ignore[reportArgumentType]
    assert predict(Answer({"v": torch.zeros(3, 3, 3)}), processes, {"v": torch.zeros(3, 3)}, 0.5)["v"].shape == (
        3,
        3,
        3,
    )
    with pytest.raises(ValueError, match=r"has shape \(3, 3\), but Jump needs \(3, 3, 3\)"):
        predict(Answer({"v": torch.zeros(3, 3)}), processes, {"v": torch.zeros(3, 3)}, 0.5)


def test_predict_looks_at_no_value():
    with fake_tensors() as mode:
        state: State = {name: mode.from_tensor(x) for name, x in draw(MIXED, (5,)).items()}
        assert predict(Answer(good()), PROCESSES, state, 0.5)["h"].shape == (5, 3, 2)


def test_scalar():
    energy = Scalar(MLP(MIXED, {"free_energy": ()}, width=8).double())
    assert energy(draw(MIXED, (3, 5)), torch.rand(5)).shape == (3, 5)
    with pytest.raises(ValueError, match=r"one scalar output, outputs={'energy': \(\)}; got"):
        Scalar(MLP(MIXED, denoiser_outputs(MIXED), width=8))
