"""The network of LEAPS is locally equivariant to the last bit, and sees everything that it may see."""

import pytest
import torch
from torch import nn

import egm
from egm.networks import LocallyEquivariantConv, Symmetrised
from egm.spaces import Categorical, Space
from support.leaps_cases import random_network

CASES = [(2, 2, {}), (3, 2, {"depth": 3}), (3, 3, {"positions": True}), (4, 3, {}), (5, 2, {"positions": True})]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(("size", "n", "options"), CASES)
@torch.no_grad()
def test_local_equivariance_is_exact(size, n, options, wrapped):
    network: nn.Module = random_network(size, n, **options)
    if wrapped:
        network = Symmetrised(network, ("symbol-shift",))
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(n, (6, size, size), generator=generator)
    t = torch.rand(6, generator=generator, dtype=torch.float64)
    there = network({"s": x}, t)["s"].flatten(1, 2)
    assert (there.gather(2, x.flatten(1)[..., None]) == 0).all()
    for site in range(size**2):
        for symbol in range(n):
            y = x.flatten(1).clone()
            y[:, site] = symbol
            back = network({"s": y.reshape(x.shape)}, t)["s"].flatten(1, 2)
            forth, reverse = there[:, site, symbol], back[:, site].gather(1, x.flatten(1)[:, [site]])[:, 0]
            # averages over shifts are summed in another order
            torch.testing.assert_close(forth, -reverse, rtol=0, atol=1e-14 if wrapped else 0)
            others, moved = [i for i in range(size**2) if i != site], x.flatten(1)[:, site] != symbol
            assert (forth[moved] != 0).all()
            assert (back != there)[moved][:, others].any(-1).all()  # every other site sees this one


@torch.no_grad()
def test_a_centre_that_is_seen_is_not():
    network = random_network(3, scale=1.0)
    network.centre.fill_(1.0)
    x, t = torch.zeros(1, 3, 3, dtype=torch.int64), torch.zeros(1, dtype=torch.float64)
    y = x.clone()
    y[0, 1, 1] = 1
    forth, back = network({"s": x}, t)["s"][0, 1, 1, 1], network({"s": y}, t)["s"][0, 1, 1, 0]
    assert abs(float(forth + back)) > 1e-3


@pytest.mark.parametrize("positions", [False, True])
@torch.no_grad()
def test_translations(positions):
    network = random_network(4, 3, positions=positions)
    x = torch.randint(3, (5, 4, 4), generator=torch.Generator().manual_seed(0))
    t = torch.full((5,), 0.3, dtype=torch.float64)
    moved = network({"s": x.roll((1, 2), (1, 2))}, t)["s"]
    same = torch.allclose(moved, network({"s": x}, t)["s"].roll((1, 2), (1, 2)), atol=1e-12)
    assert same == (not positions)
    assert network.symmetries == (() if positions else ("translation",))


def test_batches_times_and_gradients():
    network = random_network(3)
    x = torch.randint(2, (4, 5, 3, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    t = torch.rand(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rates = network({"s": x}, t)["s"]
    torch.testing.assert_close(network({"s": x[2, 3]}, t[3])["s"], rates[2, 3])
    assert network({"s": x[:0]}, t)["s"].shape == (0, 5, 3, 3, 2)
    rates.square().sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in network.parameters())
    fresh = LocallyEquivariantConv(network.space, network.outputs)({"s": x}, t)["s"].detach()
    assert 0 < float(fresh.abs().max()) < 0.1  # small, but not zero: there [F]₊ has no slope


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"square grid.*shape=\(2, 3\)"):
        LocallyEquivariantConv(Space(s=Categorical(2, shape=(2, 3))), {"s": (2, 3, 2)})
    two = Space(s=Categorical(2, shape=(2, 2)), r=Categorical(2, shape=(2, 2)))
    with pytest.raises(ValueError, match="single Categorical variable"):
        LocallyEquivariantConv(two, {"s": (2, 2, 2)})
    with pytest.raises(ValueError, match="is for leaps and leaps-mcmc only, not for egm-sp"):
        egm.fit(egm.targets.Ising(3, 0.3), steps=1, network="LocallyEquivariantConv", device="cpu", progress=False)
