"""The guard of energies: what it passes on, when it raises, and which state it shows."""

import math

import pytest
import torch

from egm.spaces import Categorical, Real, Space
from egm.targets import EnergyError, Target
from egm.targets.guard import EnergyGuard

INF, NAN = math.inf, math.nan


def reading(space=None):
    """A guard whose target returns the latent's own first coordinate as its energy."""
    space = space or Space(x=Real(1))
    return EnergyGuard(Target(space, lambda **state: next(iter(state.values()))[..., 0]))


def give(guard, *values):
    return guard({"x": torch.tensor(values)[:, None]})


def test_energies_pass_unchanged_and_illegal_ones_become_infinite():
    guard = reading()
    assert give(guard, 1.5, INF, -1e30, 0.0).tolist() == [1.5, INF, pytest.approx(-1e30), 0.0]
    guard.check()
    assert give(guard, NAN, 2.0, -INF, INF).tolist() == [INF, 2.0, INF, INF]


@pytest.mark.parametrize(("value", "shown"), [(NAN, "nan"), (-INF, "-inf")])
def test_illegal_energies_raise_at_the_next_check(value, shown):
    guard = reading()
    give(guard, 1.0, value, 2.0)
    with pytest.raises(EnergyError, match=rf"the energy is {shown} at the state x=\[{shown}\]; only finite values"):
        guard.check()


def energy_of_two(x, h):
    """NaN for x[0] > 10, −inf for h = (1, 1), in the user's coordinates."""
    energy = torch.where(x[..., 0] > 10, NAN, x.square().sum(-1))
    return torch.where((h == 1).all(-1), -INF, energy)


def two_guard():
    return EnergyGuard(Target(Space(x=Real(2, loc=5.0, scale=2.0), h=Categorical(2, shape=2)), energy_of_two))


def states(*rows):
    return {
        "x": torch.tensor([row[:2] for row in rows]),
        "h": torch.tensor([[int(h) for h in row[2:]] for row in rows]),
    }


def test_the_first_offending_state_is_shown_in_the_users_coordinates():
    """x = 5 + 2z; the first of several states in the first of several batches with one."""
    guard = two_guard()
    guard(states([0.0, 0.0, 0, 1], [1.0, 1.0, 1, 0]))
    guard(states([0.0, 0.0, 0, 1], [3.0, -1.0, 1, 0], [0.5, 0.5, 1, 1], [4.0, 0.0, 0, 0]))
    guard(states([9.0, 9.0, 0, 0]))
    guard(states([0.0, 0.0, 0, 0]))
    with pytest.raises(EnergyError, match=r"the energy is nan at the state x=\[11\.0, 3\.0\], h=\[1, 0\]"):
        guard.check()


def test_the_other_kind_first():
    guard = two_guard()
    guard(states([0.5, 0.5, 1, 1], [4.0, 0.0, 0, 0]))
    with pytest.raises(EnergyError, match=r"the energy is -inf at the state x=\[6\.0, 6\.0\], h=\[1, 1\]"):
        guard.check()


def test_batches_of_proposals():
    """Energies come as [k, b]; the state shown is the right one of the k·b."""
    guard = two_guard()
    x, h = torch.zeros(5, 3, 2), torch.zeros(5, 3, 2, dtype=torch.int64)
    x[2, 1] = torch.tensor([3.5, 0.25])
    assert guard({"x": x, "h": h}).shape == (5, 3)
    with pytest.raises(EnergyError, match=r"x=\[12\.0, 5\.5\], h=\[0, 0\]"):
        guard.check()


def test_constrained_variables_are_shown_as_the_user_knows_them():
    space = Space(p=Real(3, constraint="simplex"), s=Real((), constraint="positive"))
    guard = EnergyGuard(Target(space, lambda p, s: torch.where(s > 2, NAN, s)))
    guard({"p": torch.zeros(2, 2), "s": torch.tensor([0.0, math.log(4.0)])})
    with pytest.raises(EnergyError, match=r"p=\[0\.33\d*, 0\.33\d*, 0\.33\d*\], s=(4\.0|3\.999)"):
        guard.check()


def test_infinity_alone_is_legal_as_long_as_something_is_finite():
    guard = reading()
    give(guard, INF, INF)
    give(guard, INF, 3.0)
    give(guard, INF, INF)
    guard.check()
    give(guard, INF, INF)
    give(guard, INF)
    with pytest.raises(EnergyError, match=r"had energy \+inf \(zero density\) on every proposal since the last check"):
        guard.check()


def test_checks_are_silent_without_news():
    guard = reading()
    guard.check()  # nothing seen yet
    give(guard, 1.0, INF)
    guard.check()
    guard.check()  # nothing since: not "every proposal was infinite"
    give(guard, 2.0)
    guard.check()


def test_what_a_check_has_seen_is_forgotten():
    guard = reading()
    give(guard, 1.0)
    guard.check()
    give(guard, INF)  # the finite energy before the check does not count any more
    with pytest.raises(EnergyError, match="every proposal"):
        guard.check()


def test_an_error_stays_until_the_end():
    """A failed run may check again before it saves, and the check must fail again."""
    guard = reading()
    give(guard, NAN)
    for _ in range(2):
        with pytest.raises(EnergyError, match="the energy is nan"):
            guard.check()


def test_bad_energies_after_a_clean_check_are_found_and_shown():
    guard = reading()
    give(guard, 4.0)
    guard.check()
    give(guard, 5.0, -INF)
    with pytest.raises(EnergyError, match=r"the energy is -inf at the state x=\[-inf\]"):
        guard.check()


def test_calls_are_counted_and_latent():
    """The energy is that of latent coordinates, E(x(z)) − log |∂x/∂z|."""
    guard = EnergyGuard(Target(Space(x=Real(2, scale=3.0)), lambda x: x.sum(-1)))
    energy = guard({"x": torch.ones(4, 2)}, 1.0)
    torch.testing.assert_close(energy, torch.full((4,), 6 - 2 * math.log(3)))
    assert guard.target.energy_calls == 4


def test_memory_is_written_in_place():
    """A replayed CUDA graph writes to the tensors that it was recorded with."""
    guard = reading()
    give(guard, 1.0, 2.0)
    kept = [guard._bad, guard._finite, guard._seen, guard._energy, *guard._state.values()]
    give(guard, NAN)
    now = [guard._bad, guard._finite, guard._seen, guard._energy, *guard._state.values()]
    assert [x.data_ptr() for x in kept] == [x.data_ptr() for x in now]
    assert bool(guard._bad)
