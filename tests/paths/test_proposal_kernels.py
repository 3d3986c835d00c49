"""Proposals of symbols by the Triton kernel: their law, which sites they leave alone, and their random numbers."""

import pytest
import torch

import egm.util.triton
from egm.paths import Masked, Uniform
from egm.paths.discrete import PROPOSAL_KERNELS
from egm.spaces.variables import Categorical
from support.gpu_cases import DEVICE, OnAGpu
from support.stats import assert_counts

kernels = pytest.importorskip("egm.paths.proposal_kernels", reason="no Triton")


def generator(seed=0):
    return torch.Generator(DEVICE).manual_seed(seed)


def key(seed=0):
    return torch.randint(2**62, (1,), generator=generator(seed), device=DEVICE)


@pytest.mark.parametrize("stay", [None, 0.0, 0.3, 0.999, 1.0])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_law_of_sites(n, stay):
    """At sites that may change: old with the probability `stay`, otherwise uniform.

    Independent from site to site, from state to state and from proposal to proposal.
    """
    x = torch.full((1000, 2), n, dtype=torch.uint8, device=DEVICE)
    stays = None if stay is None else torch.full((1000,), stay, device=DEVICE)
    found = kernels.renewed(x, stays, n, 16, key(), n).long().cpu()  # [16, 1000, 2]
    law = torch.full((n + 1,), (1 - (stay or 0.0)) / n, dtype=torch.float64)
    law[n] = stay or 0.0
    pairs = {
        "sites": (found[..., 0], found[..., 1]),
        "states": (found[:, ::2], found[:, 1::2]),
        **{f"proposals {k} apart": (found[: 16 - k : 2 * k], found[k :: 2 * k]) for k in (1, 2, 4, 8)},
    }
    for name, (a, b) in pairs.items():
        both = torch.bincount((a * (n + 1) + b).flatten(), minlength=(n + 1) ** 2)
        assert_counts(both, torch.outer(law, law).flatten(), name)


@pytest.mark.parametrize("count", [1, 2, 5, 17, 33])
@pytest.mark.parametrize("stays", [False, True])
def test_what_does_not_change(count, stays):
    """Sites with other symbols keep them, every proposal is written, and each state has its own probability."""
    x = torch.randint(3, (40, 70), dtype=torch.uint8, device=DEVICE, generator=generator(1))
    stay = torch.arange(40, device=DEVICE).lt(20).float() if stays else None
    found = kernels.renewed(x, stay, 2, count, key(), 2)
    assert found.shape == (count, 40, 70)
    masked = (x == 2).expand_as(found)
    assert torch.equal(found[~masked], x.expand_as(found)[~masked])
    if stays:
        assert (found[:, :20] == x[:20]).all()
        assert (found[:, 20:] != 2).all()
    else:
        assert (found != 2).all()
    everywhere = kernels.renewed(x, None, 200, count, key(), None)
    assert float((everywhere == x).float().mean()) < 0.02


def test_random_numbers_are_the_keys():
    """Two tiles of sites: the same numbers again from the same key, others from others and at other sites."""
    x = torch.full((2, kernels.TILE), 2, dtype=torch.uint8, device=DEVICE)
    found = kernels.renewed(x, None, 2, 8, key(4), 2)
    assert torch.equal(found, kernels.renewed(x, None, 2, 8, key(4), 2))
    assert not torch.equal(found, kernels.renewed(x, None, 2, 8, key(5), 2))
    assert 0.4 < float((found[:, 0] == found[:, 1]).float().mean()) < 0.6


def test_keys_are_the_generators(monkeypatch):
    """A path draws a new one for every call, all of them different."""
    path, keys = Masked(Categorical(2)), []
    monkeypatch.setattr(kernels, "renewed", lambda x, stay, n, count, key, only: (keys.append(int(key)), x)[1])
    x, source = torch.full((1,), 2, dtype=torch.uint8, device=DEVICE).as_subclass(OnAGpu), generator()
    for _ in range(50):
        path.proposer(x, 0.2)(1, source)
    assert len(set(keys)) == 50
    assert max(keys) > 2**60
    path.proposer(x, 0.2)(1, generator())
    assert keys[-1] == keys[0]


def test_a_wrong_generator_is_not_the_kernels_fault():
    path, x = Masked(Categorical(2)), torch.full((1,), 2, dtype=torch.uint8, device=DEVICE).as_subclass(OnAGpu)
    with pytest.raises(TypeError):
        path.proposer(x, 0.2)(1, "no generator")  # type: ignore[arg-type]
    assert PROPOSAL_KERNELS not in egm.util.triton._MISSING


def test_states_that_are_not_side_by_side_in_memory():
    x = torch.randint(3, (50, 6), dtype=torch.uint8, device=DEVICE, generator=generator(1)).T
    stay = torch.rand(12, device=DEVICE, generator=generator(2))[::2]
    found = kernels.renewed(x, stay, 2, 3, key(), 2)
    assert torch.equal(found, kernels.renewed(x.contiguous(), stay.contiguous(), 2, 3, key(), 2))


@pytest.mark.parametrize("law", ["flat", "reference"])
@pytest.mark.parametrize("make", [Masked, Uniform])
@pytest.mark.parametrize("t", [0.3, torch.tensor([0.1, 0.6, 0.3])])
def test_paths_propose_by_it(monkeypatch, make, t, law):
    """With the same probabilities as without the kernel."""
    path, used, plain = make(Categorical(2, shape=(2, 2))), [], kernels.renewed
    x = path.prior_sample((1, 3), 0.4, generator=generator(1), device=DEVICE).to(torch.uint8).expand(250, 3, 2, 2)
    monkeypatch.setattr(kernels, "renewed", lambda *given: (used.append(1), plain(*given))[1])
    t = t.to(DEVICE) if isinstance(t, torch.Tensor) else t
    for r in (1.0, 0.7, torch.full((3,), 0.8, device=DEVICE)):
        found = path.proposer(x.as_subclass(OnAGpu), t, r, law=law)(16, generator())
        monkeypatch.setattr(egm.util.triton, "_MISSING", {PROPOSAL_KERNELS})
        expected = path.proposer(x, t, r, law=law)(16, generator())
        monkeypatch.setattr(egm.util.triton, "_MISSING", set())
        for symbol in range(path.alphabet):
            shares = [(y.as_subclass(torch.Tensor) == symbol).float().mean((0, 1)) for y in (found, expected)]
            torch.testing.assert_close(*shares, atol=5 * (0.5 / 4000) ** 0.5, rtol=0)
    assert used == [1, 1, 1]


def test_sites_of_unequal_sizes_do_without(monkeypatch):
    path = Masked(Categorical((2, 3), shape=2))
    monkeypatch.setattr(kernels, "renewed", None)
    x = torch.full((3, 2), 3, dtype=torch.uint8, device=DEVICE).as_subclass(OnAGpu)
    assert path.proposer(x, 0.2)(5, generator()).shape == (5, 3, 2)
