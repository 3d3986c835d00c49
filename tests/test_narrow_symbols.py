"""Proposals hold symbols in one byte: the same numbers everywhere, and int64 wherever a user's code sees them."""

import functools
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.optim.swa_utils import AveragedModel

import egm
from egm import targets
from egm.networks import MLP, Preconditioned, ResidualMLP, Scalar, Symmetrised, mlp
from egm.networks.base import activation_bytes, is_built_in
from egm.networks.embeddings import TOKEN_FEATURES, FlatTokens
from egm.networks.symmetric import shifted
from egm.paths import Masked, ProductPath, Uniform
from egm.spaces import Categorical, Real, Space
from egm.spaces.variables import Categorical as Variable
from support.network_cases import BODIES, build, draw
from support.training import make_trainer, small

SPACE = Space(s=Categorical(3, shape=(2, 2)), k=Categorical((2, 200), shape=2), x=Real(2))


def test_bytes_that_hold_the_symbols():
    x = {"s": torch.tensor([[3, 0], [1, 2]]), "k": torch.tensor([1, 199]), "x": torch.zeros(2)}
    narrow = SPACE.narrowed(x)
    assert (narrow["s"].dtype, narrow["k"].dtype, narrow["x"].dtype) == (torch.uint8, torch.int64, torch.float32)
    wide = SPACE.widened(narrow)
    assert all(torch.equal(wide[name], x[name]) and wide[name].dtype == x[name].dtype for name in x)


@pytest.mark.parametrize("n", [127, 128])
def test_sums_of_two_symbols_fit(n):
    """As relabelling needs them."""
    x = torch.arange(n + 1).to(Variable(n).narrow)
    assert torch.equal(shifted(x, n).long(), shifted(x.long(), n))


@pytest.mark.parametrize("law", ["flat", "reference"])
@pytest.mark.parametrize("r", [1.0, 0.7])
@pytest.mark.parametrize("make", [Masked, Uniform])
@pytest.mark.parametrize("n", [3, (2, 3, 2, 3)])
def test_proposals_are_the_same(make, n, r, law):
    path = make(Categorical(n, shape=4))
    x_t = path.prior_sample((50,), 0.3, generator=torch.Generator().manual_seed(1))
    found = [
        path.proposer(x, 0.3, r, law=law)(20, torch.Generator().manual_seed(2))
        for x in (x_t, x_t.to(path.variable.narrow))
    ]
    assert [x.dtype for x in found] == [torch.int64, torch.uint8]
    assert torch.equal(found[0], found[1].long())
    assert (make is Masked and r < 1) == bool((found[0] == path.variable.mask).any())


LATTICES = [targets.Ising(4, 0.4, field=0.2), targets.Ising(3, 0.4, J=-1.0), targets.Potts(4, 3, 0.7),
            targets.SpinGlass(4, seed=0, beta=0.8)]  # fmt: skip


@pytest.mark.parametrize("target", LATTICES, ids=repr)
def test_energies_of_lattices(target):
    generator = torch.Generator().manual_seed(0)
    s = torch.randint(target.states + 1, (30, *target.space["s"].shape), generator=generator)
    assert torch.equal(target.partial_energy(s=s), target.partial_energy(s=s.to(torch.uint8)))
    complete = s.clamp(max=target.states - 1)
    assert torch.equal(target.energy(s=complete), target.latent_energy({"s": complete.to(torch.uint8)}))


@pytest.mark.parametrize("case", BODIES)
def test_networks_take_them(case):
    network, space = build(case), BODIES[case][1]
    state, t = draw(space, (5,)), torch.tensor(0.4, dtype=torch.float64)
    expected, found = network(state, t), network(space.narrowed(state), t)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("n", [2, TOKEN_FEATURES, TOKEN_FEATURES + 1])
def test_few_symbols_are_projected_without_their_embedding(n):
    """The same numbers, with any of the variables present or missing."""
    torch.manual_seed(0)
    space = Space(a=Categorical(n, shape=(2, 3)), b=Categorical(7, shape=2))
    tokens, weight = FlatTokens(space).double(), torch.randn(5, TOKEN_FEATURES * 8, dtype=torch.float64)
    state = {name: torch.randint(v.size + 1, (4, *v.shape)) for name, v in space.categorical.items()}
    embedded = [
        table(state[name].reshape(4, -1)).flatten(-2)
        for name, table in zip(space.variables, tokens.tables, strict=True)
    ]
    parts = tokens.factors(state, torch.Size([4]), weight)
    found = functools.reduce(torch.add, [linear(*part) for part in parts])
    torch.testing.assert_close(found, torch.cat(embedded, -1) @ weight.T)


@pytest.mark.parametrize("body", [MLP, ResidualMLP])
def test_many_states_are_treated_as_few_are(monkeypatch, body):
    space = Space(s=Categorical(2, shape=3), k=Categorical(9), x=Real(2))
    torch.manual_seed(0)
    network = body(space, {"energy": ()}, width=8, depth=2).double()
    nn.init.normal_(next(p for name, p in network.named_parameters() if name.endswith("linear.weight")))
    state = draw(space, (2, 50))
    expected = network(state, torch.tensor(0.3, dtype=torch.float64))["energy"]
    monkeypatch.setattr(mlp, "MANY_STATES", 100)
    monkeypatch.setattr(FlatTokens, "forward", None)
    torch.testing.assert_close(network(state, torch.tensor(0.3, dtype=torch.float64))["energy"], expected)


@pytest.mark.parametrize("many", [1, 100])
@pytest.mark.parametrize("body", [MLP, ResidualMLP])
def test_gradients_reach_the_embedding(monkeypatch, body, many):
    monkeypatch.setattr(mlp, "MANY_STATES", many)
    space = Space(s=Categorical(2, shape=3), x=Real(2))
    torch.manual_seed(0)
    network = body(space, {"energy": ()}, width=8, depth=2)
    nn.init.normal_(next(p for name, p in network.named_parameters() if name.endswith("linear.weight")))
    state = {"s": torch.tensor([[0, 1, 2], [1, 1, 0]]), "x": torch.randn(2, 2)}
    network(state, torch.tensor(0.3))["energy"].sum().backward()
    table = next(p for name, p in network.named_parameters() if "tables" in name)
    assert table.grad is not None
    assert bool((table.grad.abs().sum(1) > 0).all())  # of every symbol, and of the mask


class Watching(nn.Module):
    """An energy network that records the dtype of its symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seen: set[torch.dtype] = set()

    def forward(self, state, t):
        self.seen.add(state["s"].dtype)
        return self.scale * state["s"].sum(-1) + t


@pytest.mark.parametrize("narrow", [True, False])
def test_energies_that_see_int64_are_asked_in_slices(monkeypatch, narrow):
    """In addition to the proposals, they take eight bytes for each symbol, several times."""
    monkeypatch.setattr(targets.Ising, "narrow_symbols", narrow)
    target, sizes = targets.Ising(4, 0.4), []
    plain = target._energy
    target._energy = lambda s: (sizes.append(s.numel() * s.element_size()), plain(s))[1]
    trainer = make_trainer(target, "egm", steps=1, proposals=512, memory=200_000)
    trainer.method.refresh(trainer.buffer, trainer.draw())
    trainer.gradient_step()
    assert max(sizes) < 200_000 / 3
    assert len(sizes) == (2 if narrow else 16)  # 393 216 bytes of narrow temporaries, eight times as many of wide ones


class Wrapped(Watching):
    """With the interface of a body of this package."""

    outputs: ClassVar = {"energy": ()}

    def forward(self, state, t):
        return {"energy": super().forward(state, t)}


def test_which_networks_are_built_in():
    """Other networks are neither rounded nor given narrow symbols."""
    space = Space(s=Categorical(2, shape=3))
    path, body = ProductPath(space), MLP(space, {"energy": ()}, width=8)

    class Mine(MLP):
        pass

    for wrap in (lambda x: x, Scalar, lambda x: Preconditioned(x, path), lambda x: Scalar(Preconditioned(x, path)),
                 lambda x: AveragedModel(Scalar(x)), lambda x: Symmetrised(x, ("spin-flip",))):  # fmt: skip
        assert is_built_in(wrap(body))
        assert not is_built_in(wrap(Mine(space, {"energy": ()}, width=8)))
    assert not is_built_in(Watching())
    assert not is_built_in(Scalar(Wrapped()))


def test_what_symbols_take_before_the_first_layer_counts():
    space = Space(s=Categorical(2, shape=(32, 32)))
    assert activation_bytes(MLP(space, {"energy": ()}, width=8), ProductPath(space)) >= 2 * 32 * 32 * 4


@pytest.mark.parametrize("make", [Watching, Wrapped])
@pytest.mark.parametrize("method", ["egm", "egm-bs"])
def test_users_see_int64(method, make):
    seen: set[torch.dtype] = set()

    def energy(s):
        seen.add(s.dtype)
        return s.sum(-1).float()

    network = make()
    extra = {"energy_network": network if make is Watching else Scalar(network)} if method == "egm-bs" else {}
    target = egm.Target(Space(s=Categorical(2, shape=3)), energy)
    shared = {name: value for name, value in small(method).items() if name != "energy_network"}
    egm.fit(target, method=method, steps=8, **{**shared, **extra})
    assert seen == {torch.int64}
    assert network.seen == ({torch.int64} if method == "egm-bs" else set())
