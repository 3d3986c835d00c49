"""The replay buffer: the newest draws, whatever the sizes; uniform draws; what is saved comes back."""

import io

import pytest
import torch

from egm.train.buffer import ReplayBuffer
from support.stats import assert_counts


def numbered(*range_):
    """States that carry their number, in two variables."""
    n = torch.arange(*range_)
    return {"x": n[:, None].double() * torch.tensor([1.0, -1.0], dtype=torch.float64), "s": n}


def held(buffer):
    """Numbers of the states that can be drawn, after checking that the variables belong together."""
    draws = buffer.sample(4000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws["x"], draws["s"][:, None] * torch.tensor([1.0, -1.0], dtype=torch.float64))
    return draws["s"].unique().tolist()


@pytest.mark.parametrize("capacity", [1, 5, 7, 16])
@pytest.mark.parametrize("sizes", [[3, 3, 3, 3], [5, 1, 5], [7, 7], [20], [2, 20, 3], [16, 1], [1] * 11, [6, 0, 6]])
def test_the_newest_states_are_held(capacity, sizes):
    buffer, start = ReplayBuffer(capacity), 0
    for size in sizes:
        buffer.add(numbered(start, start + size))
        start += size
        assert buffer.filled == min(start, capacity)
        assert held(buffer) == list(range(max(0, start - capacity), start))


def test_a_ring_overwrites_the_oldest_in_place():
    buffer = ReplayBuffer(5)
    buffer.add(numbered(0, 4))
    buffer.add(numbered(4, 7))
    assert buffer._states["s"].tolist() == [5, 6, 2, 3, 4]
    buffer.add(numbered(7, 9))
    assert buffer._states["s"].tolist() == [5, 6, 7, 8, 4]
    buffer.add(numbered(9, 11))
    assert buffer._states["s"].tolist() == [10, 6, 7, 8, 9]


def test_added_states_are_copied():
    buffer, states = ReplayBuffer(4), numbered(0, 4)
    buffer.add(states)
    states["s"].fill_(99)
    states["x"].fill_(99)
    assert held(buffer) == [0, 1, 2, 3]


@pytest.mark.parametrize(("capacity", "added"), [(8, 8), (8, 13), (20, 8)])
def test_draws_are_uniform_and_independent(capacity, added):
    buffer = ReplayBuffer(capacity)
    buffer.add(numbered(0, added))
    draws = buffer.sample(8000, torch.Generator().manual_seed(1))["s"] - max(0, added - capacity)
    assert_counts(torch.bincount(draws, minlength=8), [1 / 8] * 8)
    pairs = draws[::2] * 8 + draws[1::2]  # with replacement
    assert_counts(torch.bincount(pairs, minlength=64), [1 / 64] * 64)


def test_draws_are_reproducible_and_of_the_states_dtype():
    buffer = ReplayBuffer(10)
    buffer.add(numbered(0, 10))
    a, b, c = (buffer.sample(50, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(a["s"], b["s"])
    assert not torch.equal(a["s"], c["s"])
    assert (a["x"].dtype, a["s"].dtype) == (torch.float64, torch.int64)
    assert a["x"].shape == (50, 2)


@pytest.mark.parametrize("sizes", [[], [3], [10], [10, 4], [7, 7, 7]])
def test_what_is_saved_comes_back_as_it_was(sizes):
    """Through a file without pickled objects; afterwards both go on alike, draw by draw."""
    buffer, start = ReplayBuffer(10), 0
    for size in sizes:
        buffer.add(numbered(start, start + size))
        start += size
    stream = io.BytesIO()
    torch.save(buffer.state_dict(), stream)
    stream.seek(0)
    again = ReplayBuffer(10)
    again.add(numbered(500, 507))  # is replaced
    again.load_state_dict(torch.load(stream, weights_only=True))
    assert again.filled == buffer.filled
    for size in (0, 4, 3):
        for one in (buffer, again):
            one.add(numbered(start, start + size))
        start += size
        if buffer.filled:
            a, b = (one.sample(200, torch.Generator().manual_seed(size)) for one in (buffer, again))
            assert torch.equal(a["s"], b["s"])
            assert torch.equal(a["x"], b["x"])


@pytest.mark.parametrize("capacity", [4, 10, 15, 40])
@pytest.mark.parametrize("added", [6, 10, 13, 27])
def test_another_capacity_keeps_the_newest(added, capacity):
    buffer, again = ReplayBuffer(10), ReplayBuffer(capacity)
    for start in range(0, added, 3):
        buffer.add(numbered(start, min(start + 3, added)))
    again.load_state_dict(buffer.state_dict())
    oldest = max(0, added - min(capacity, 10))
    assert held(again) == list(range(oldest, added))
    again.add(numbered(added, added + 3))
    kept = range(max(oldest, added + 3 - capacity), added + 3)
    assert held(again) == list(kept)


def test_errors():
    with pytest.raises(ValueError, match="room for at least one state, got 0"):
        ReplayBuffer(0)
    with pytest.raises(ValueError, match="the buffer is empty; add draws of the sampler first"):
        ReplayBuffer(3).sample(1, torch.Generator())
