"""Steps of masked symbols by the Triton kernel: their law, which sites they leave alone, and their random numbers."""

import pytest
import torch

import egm.util.triton
from egm.paths import Masked, Uniform
from egm.paths.discrete import REVEAL_KERNELS
from egm.processes import DiscreteJump
from egm.spaces.variables import Categorical
from support.gpu_cases import DEVICE, OnAGpu
from support.stats import assert_counts

kernels = pytest.importorskip("egm.paths.reveal_kernels", reason="no Triton")


def generator(seed=0):
    return torch.Generator(DEVICE).manual_seed(seed)


def key(seed=0):
    return torch.randint(2**62, (1,), generator=generator(seed), device=DEVICE)


@pytest.mark.parametrize("p", [0.0, 0.03, 0.6, 1.0])
@pytest.mark.parametrize("weights", [[0.5, 0.5], [0.2, 0.7, 0.1], [0.0, 0.3, 0.0, 0.7, 0.0], [1.0]])
def test_law_of_sites(weights, p):
    """A symbol by its weight with the probability p; independent from site to site, and from state to state."""
    n = len(weights)
    x = torch.full((4000, 2), n, dtype=torch.int64, device=DEVICE)
    table = torch.tensor(weights, device=DEVICE).expand(4000, 2, n)
    found = kernels.revealed(x, table, torch.tensor([p], device=DEVICE), n, key()).cpu()
    law = torch.tensor([*(p * w for w in weights), 1 - p], dtype=torch.float64)
    for name, (a, b) in {"sites": (found[:, 0], found[:, 1]), "states": (found[::2], found[1::2])}.items():
        both = torch.bincount((a * (n + 1) + b).flatten(), minlength=(n + 1) ** 2)
        assert_counts(both, torch.outer(law, law).flatten(), name)


def test_what_does_not_change():
    """Revealed sites keep their symbols, states have their own probabilities, and every site is written."""
    x = torch.randint(3, (40, 70), device=DEVICE, generator=generator(1))
    p = torch.arange(40, device=DEVICE).lt(20).float()
    table = torch.full((40, 70, 2), 0.5, device=DEVICE)
    found = kernels.revealed(x, table, p, 2, key())
    masked = x == 2
    assert found.dtype == x.dtype
    assert torch.equal(found[~masked], x[~masked])
    assert (found[:20] < 2).all()
    assert torch.equal(found[20:], x[20:])


def test_random_numbers_are_the_keys():
    x = torch.full((2, kernels.TILE), 2, device=DEVICE)
    table, p = torch.full((2, kernels.TILE, 2), 0.5, device=DEVICE), torch.ones(1, device=DEVICE)
    found = kernels.revealed(x, table, p, 2, key(4))
    assert torch.equal(found, kernels.revealed(x, table, p, 2, key(4)))
    assert not torch.equal(found, kernels.revealed(x, table, p, 2, key(5)))
    assert 0.35 < float((found[0] == found[1]).float().mean()) < 0.65


def case(shape=(2, 2), n=3, states=2500):
    """A process with states of which some sites are masked, and tables that differ between states and sites."""
    process = DiscreteJump(Masked(Categorical(n, shape=shape)))
    kinds = process.path.prior_sample((3,), 0.4, generator=generator(1), device=DEVICE)
    tables = torch.rand(3, *shape, process.path.variable.size, generator=generator(2), device=DEVICE)
    tables = tables * process.path.variable.legal(tables)
    tables = tables / tables.sum(-1, keepdim=True)
    each = [states, *(-1,) * kinds.ndim]
    return process, kinds.expand(each).clone(), tables.expand(*each, -1).clone()


@pytest.mark.parametrize("n", [3, ((2, 3), (3, 2))])
@pytest.mark.parametrize("solver", ["step", "euler", "tau_leap"])
@pytest.mark.parametrize(
    "times", [(0.3, 0.5), (0.3, 0.9), (torch.tensor([0.1, 0.6, 0.3]), torch.tensor([0.2, 0.9, 0.8]))]
)
def test_steps_have_the_law_of_their_tables(monkeypatch, solver, times, n):
    """Bridge, Euler (also where a jump is certain) and tau-leaping, with one time for all states or one for each."""
    process, x_t, table = case(n=n)
    t, r = (v.to(DEVICE) if isinstance(v, torch.Tensor) else v for v in times)
    used, plain = [], kernels.revealed
    monkeypatch.setattr(kernels, "revealed", lambda *given: (used.append(1), plain(*given))[1])
    law = {"step": process.path.bridge, "euler": process.euler_table, "tau_leap": process.tau_leap_table}[solver]
    expected = law(x_t[0], table[0], t, r).double().cpu()
    found = getattr(process, solver)(x_t.as_subclass(OnAGpu), table, t, r, generator=generator())
    found = found.as_subclass(torch.Tensor).cpu()
    assert used == [1]
    for state in range(3):
        for i in range(2):
            for j in range(2):
                counts = torch.bincount(found[:, state, i, j], minlength=process.path.alphabet)
                assert_counts(counts, expected[state, i, j], f"state {state}, site {i}, {j}")


def test_states_that_are_narrow_or_not_side_by_side_and_tables_with_an_entry_for_the_mask():
    process, x_t, table = case()
    longer = torch.cat([table, torch.ones_like(table[..., :1])], -1)  # it does not count
    expected = process.step(x_t.as_subclass(OnAGpu), table, 0.3, 0.5, generator=generator())
    turned = x_t.transpose(0, 1).contiguous().transpose(0, 1)
    for x, d in ((x_t.to(torch.uint8), table), (turned, table), (x_t, longer)):
        found = process.step(x.as_subclass(OnAGpu), d, 0.3, 0.5, generator=generator())
        assert torch.equal(found.long().as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))


class Late(Masked):
    """Nothing is revealed before the end."""

    def bridge(self, x_t, table, t, r):
        return self.one_hot(x_t, table.dtype)


class Never(DiscreteJump):
    """Euler steps that stay."""

    def euler_table(self, x_t, prediction, t, r):
        return self.path.one_hot(x_t, prediction.dtype)


def test_derived_classes_keep_their_laws():
    process, x_t, table = case()
    late, never = DiscreteJump(Late(process.path.variable)), Never(process.path)
    for step in (late.step, never.euler):
        found = step(x_t.as_subclass(OnAGpu), table, 0.3, 0.9, generator=generator())
        assert torch.equal(found.as_subclass(torch.Tensor), x_t)


def test_cases_that_do_without(monkeypatch):
    """Double precision, a table for all states at once, many symbols, other paths."""
    monkeypatch.setattr(kernels, "revealed", None)
    process, x_t, table = case()
    many, *rest = case(n=20)
    uniform = DiscreteJump(Uniform(process.path.variable))
    for jump, x, d in (
        (process, x_t, table.double()), (process, x_t, table[:1]), (many, *rest), (uniform, x_t.clamp(max=2), table),
    ):  # fmt: skip
        found = jump.step(x.as_subclass(OnAGpu), d, 0.3, 0.5, generator=generator())
        assert found.shape == x.shape
    assert REVEAL_KERNELS not in egm.util.triton._MISSING
