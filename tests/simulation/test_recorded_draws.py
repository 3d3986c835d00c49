"""Draws replayed from CUDA graphs equal those of a plain simulation; batches follow from the network's size."""

import copy
import pickle
import weakref

import pytest
import torch

import egm
from egm import network_sampler as module
from egm.simulation.capture import WARM_UP, CapturedStep
from egm.simulation.recorded_draws import KEPT, RecordedDraws
from egm.simulation.simulate import Simulation
from support.training import SMALL_SP, SPACES, as_sampler

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")


def trained(space="mixed", device="cpu"):
    return egm.fit(SPACES[space](), steps=4, **{**SMALL_SP, "device": device})


def test_simulations_as_tensors():
    full = Simulation({"x": torch.ones(2)}, torch.zeros(2), torch.ones(2, dtype=torch.bool))
    for simulation in (full, Simulation({"x": torch.ones(2)})):
        again = Simulation.of(simulation.tensors())
        assert again.state.keys() == {"x"}
        assert again.log_ratio is simulation.log_ratio
        assert again.invertible is simulation.invertible


def test_a_seed_gives_the_same_draws_whatever_was_drawn_before():
    sampler = trained()
    first = sampler.sample(30, seed=3)
    sampler.sample(7, seed=4)
    again, other = sampler.sample(30, seed=3), sampler.sample(30, generator=torch.Generator().manual_seed(3))
    for name in first:
        assert torch.equal(first[name], again[name])
        assert torch.equal(first[name], other[name])


def test_draws_are_not_overwritten_by_later_ones():
    recorded = RecordedDraws()
    generator, x = recorded.generator(torch.device("cpu"), 0), torch.zeros(3)

    def draw():
        return Simulation({"x": x.copy_(torch.rand(3, generator=generator))})  # as a replay does

    first = recorded("key", draw, generator).state["x"]
    kept = first.clone()
    recorded("key", draw, generator)
    assert torch.equal(first, kept)


def test_few_recordings_are_kept():
    recorded = RecordedDraws()
    for key in (1, 2, 1, 3):
        recorded(key, lambda: Simulation({"x": torch.zeros(1)}), torch.Generator())
    assert list(recorded._steps) == [1, 3]
    assert KEPT == 2
    assert copy.deepcopy(recorded)._steps == {}


def test_samplers_can_be_copied_pickled_and_freed():
    sampler = trained()
    expected = sampler.sample(9, seed=2)
    for again in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert torch.equal(again.sample(9, seed=2)["x"], expected["x"])
    other = copy.deepcopy(sampler)
    other.sample(9, seed=2, weigh=False)
    gone = weakref.ref(other)
    del other
    assert gone() is None  # without garbage collection


@pytest.mark.parametrize(
    ("n", "limit", "expected"),
    [(900, 2**31, [900]), (2500, 2**31, [2500]), (2500, 1, [1000, 1000, 500]), (25_000, 2**31, [10_000, 10_000, 5000])],
)
def test_batches(monkeypatch, n, limit, expected):
    sampler, sizes = trained(), []
    monkeypatch.setattr(module, "MOST_BYTES", limit)

    def latent(size, **options):
        sizes.append(size)
        drawn = sampler.space.reference_sample(size, generator=torch.Generator().manual_seed(0))
        return Simulation(sampler.space.to_latent(drawn))

    monkeypatch.setattr(sampler, "latent", latent)
    assert len(sampler.sample(n, seed=0, weigh=False)) == n
    assert sizes == expected


# ---------------------------------------------------------------------- on a GPU


@needs_cuda
@pytest.mark.parametrize("space", SPACES)
def test_replayed_draws_are_plain_draws(monkeypatch, space):
    sampler, recorded = trained(space, "cuda"), []
    plain = CapturedStep._record
    monkeypatch.setattr(CapturedStep, "_record", lambda self, key: (recorded.append(key), plain(self, key)))
    expected = [sampler.sample(50, generator=torch.Generator("cuda").manual_seed(s)) for s in range(WARM_UP + 3)]
    assert recorded == []
    for seed, plain_draws in enumerate(expected):
        found = sampler.sample(50, seed=seed)
        for name in found:
            torch.testing.assert_close(found[name], plain_draws[name])
        torch.testing.assert_close(found.log_weights, plain_draws.log_weights)
    assert len(recorded) == 1


@needs_cuda
def test_new_parameters_are_noticed():
    sampler = trained("discrete", "cuda")

    def randomise():  # after four steps a network's outputs are still almost constant
        with torch.no_grad():
            for parameter in as_sampler(sampler).network.parameters():
                parameter.normal_()

    randomise()
    for seed in range(WARM_UP + 2):
        sampler.sample(2000, seed=seed)
    before = sampler.sample(2000, seed=9)
    as_sampler(sampler).network.double().float()  # elsewhere in memory
    randomise()
    after = sampler.sample(2000, seed=9)
    assert not torch.equal(before["s"], after["s"])
    fresh = sampler.sample(2000, generator=torch.Generator("cuda").manual_seed(9))
    assert torch.equal(after["s"], fresh["s"])
