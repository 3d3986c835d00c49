"""Discrete paths against their defining equations, by enumeration of all states."""

import pytest
import torch

from egm.paths import Cosine, Masked, Polynomial, ProductPath
from egm.spaces import Categorical, Real, Space
from support.cases import DISCRETE, SYMBOLS, TIMES, pairs, states
from support.stats import assert_counts

PATHS = pairs(DISCRETE, SYMBOLS)


def matrix(path, t, r):
    """p_{t|r}(x_t | x_r) as [x_t, x_r] over all states, and the two lists of states."""
    x_t, x_r = states(path, running=True), states(path, running=r < 1)
    t, r = torch.tensor(t, dtype=torch.float64), torch.tensor(r, dtype=torch.float64)
    log_prob = path.log_prob(
        x_t[:, None].expand(-1, len(x_r), *x_t.shape[1:]), x_r[None].expand(len(x_t), *x_r.shape), t, r
    )
    return log_prob.exp(), x_t, x_r


def index_of(x, rows):
    """Position of every value among the rows."""
    flat_x, flat_rows = x.reshape(len(x), -1), rows.reshape(len(rows), -1)
    return (flat_x[:, None] == flat_rows[None]).all(-1).long().argmax(1)


@pytest.mark.parametrize(("t", "r"), TIMES)
@pytest.mark.parametrize("path", PATHS)
def test_kernels_are_normalised_and_so_are_proposals(path, t, r):
    p, x_t, _ = matrix(path, t, r)
    torch.testing.assert_close(p.sum(0), torch.ones(p.shape[1], dtype=torch.float64))
    normaliser = path.log_normaliser(x_t, *torch.tensor([t, r], dtype=torch.float64)).exp()
    torch.testing.assert_close(p.sum(1), normaliser)


@pytest.mark.parametrize(("t", "r", "q"), [(0.2, 0.5, 0.9), (0.1, 0.4, 1.0), (0.45, 0.7, 0.8)])
@pytest.mark.parametrize("path", PATHS)
def test_chapman_kolmogorov(path, t, r, q):
    torch.testing.assert_close(matrix(path, t, r)[0] @ matrix(path, r, q)[0], matrix(path, t, q)[0])


@pytest.mark.parametrize(("t", "r"), [(0.3, 1.0), (0.3, 0.55), (0.6, 0.61)])
@pytest.mark.parametrize("path", PATHS)
def test_samples_and_proposals_follow_their_kernels(path, t, r):
    generator = torch.Generator().manual_seed(0)
    p, x_t, x_r = matrix(path, t, r)
    count = 20_000
    start = x_r[0]
    drawn = path.sample(start.expand(count, *start.shape), t, r, generator=generator)
    assert_counts(torch.bincount(index_of(drawn, x_t), minlength=len(x_t)), p[:, 0], "sample")
    for row in (0, len(x_t) - 1):
        law = p[row] / p[row].sum()
        many = path.proposer(x_t[row], t, r)(count, generator)
        one_each = path.proposer(x_t[row].expand(count, *x_t[row].shape), t, r)(1, generator)[0]
        for proposed in (many, one_each):
            assert_counts(
                torch.bincount(index_of(proposed, x_r), minlength=len(x_r)), law, f"proposal from {x_t[row].tolist()}"
            )


@pytest.mark.parametrize(("t", "r"), [pair for pair in TIMES if pair[1] < 1])
@pytest.mark.parametrize("path", PATHS)
def test_bridge_is_bayes_rule(path, t, r):
    p_t, x_t, x_1 = matrix(path, t, 1.0)
    p_tr, _, x_r = matrix(path, t, r)
    p_r, _, _ = matrix(path, r, 1.0)
    time_t, time_r = torch.tensor(t, dtype=torch.float64), torch.tensor(r, dtype=torch.float64)
    for i, j in torch.cartesian_prod(torch.arange(len(x_t)), torch.arange(len(x_1))).tolist():
        if p_t[i, j] == 0:
            continue
        table = path.bridge(x_t[i], path.one_hot(x_1[j], torch.float64), time_t, time_r)
        gathered = table.expand(len(x_r), *table.shape).gather(-1, x_r[..., None])[..., 0]
        joint = gathered.reshape(len(x_r), -1).prod(-1)
        torch.testing.assert_close(joint, p_tr[i] * p_r[:, j] / p_t[i, j])


@pytest.mark.parametrize("path", PATHS)
def test_bridge_is_linear_in_the_table_and_normalised(path):
    generator = torch.Generator().manual_seed(0)
    x_t = states(path, running=True)
    table = torch.rand(*x_t.shape, path.variable.size, generator=generator, dtype=torch.float64)
    table = table * path.variable.legal(x_t)
    table = table / table.sum(-1, keepdim=True)
    bridge = path.bridge(x_t, table, 0.3, 0.7)
    torch.testing.assert_close(bridge.sum(-1), torch.ones(x_t.shape, dtype=torch.float64))
    end = path.bridge(x_t, table, 0.3, 1.0)
    unknown = (
        x_t == path.variable.mask if path.alphabet > path.variable.size else torch.ones_like(x_t, dtype=torch.bool)
    )
    torch.testing.assert_close(end[unknown][..., : path.variable.size], table[unknown])


@pytest.mark.parametrize("power", [0.1, 0.5, 1.0, 2.0, 3.0, None])
def test_nothing_stays_masked_at_the_end_in_single_precision(power):
    """Rounding leaves no mask at r = 1 and no negative probability, whatever float32 table a softmax returns."""
    path = Masked(Categorical([2, 3, 7]), schedule=Cosine() if power is None else Polynomial(power))
    assert float(path.kappa(torch.ones(()))) == 1
    logits = 3 * torch.randn(5_000, 3, 7, generator=torch.Generator().manual_seed(0))
    table = torch.softmax(logits.masked_fill(~path.variable.legal(logits), -torch.inf), -1)
    x_t = torch.full((5_000, 3), path.variable.mask)
    for t, r in [(0.0, 1.0), (0.4, 1.0), (0.999, 1.0), (0.4, 1 - 2**-24), (0.0, 0.5), (0.4, 0.4001)]:
        bridge = path.bridge(x_t, table, t, r)
        assert bool((bridge >= 0).all()), (t, r)
        torch.testing.assert_close(bridge.sum(-1), torch.ones(5_000, 3))
        if r == 1:
            assert bool((bridge[..., -1] == 0).all()), t


@pytest.mark.parametrize(("t", "r", "expected"), [
    (0.3, 0.6, torch.float32), (torch.tensor(0.3), 0.6, torch.float32), (0.3, torch.tensor(0.6), torch.float32),
    (torch.tensor(0.3, dtype=torch.float64), 0.6, torch.float64),
    (0.3, torch.tensor(0.6, dtype=torch.float64), torch.float64),
])  # fmt: skip
@pytest.mark.parametrize("path", pairs(DISCRETE, {"unequal": SYMBOLS["unequal"]}))
def test_results_have_the_dtype_of_the_times(path, t, r, expected):
    x = torch.zeros(4, 2, dtype=torch.int64)
    table = path.one_hot(x, expected)
    times = path.times(t, r, x)
    assert [time.dtype for time in times] == [expected] * 2
    torch.testing.assert_close(torch.stack(times).flatten(), torch.tensor([0.3, 0.6], dtype=expected))
    results = (path.log_prob(x, x, t, r), path.bridge(x, table, t, r), path.rates(x, table, t, r))
    assert {result.dtype for result in results} == {expected}
    assert path.sample(x, t, r).dtype == path.proposer(x, t, r)(2, None).dtype == torch.int64


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("t", [0.0, 0.4])
def test_prior_is_the_noised_reference_law(path, t):
    x_1 = states(path, running=False)
    x_t = states(path, running=True)
    expected = torch.stack([path.log_prob(x_t, x.expand_as(x_t), t).exp() for x in x_1]).mean(0)
    torch.testing.assert_close(path.prior_log_prob(x_t, t).exp(), expected)
    drawn = path.prior_sample((20_000,), t, generator=torch.Generator().manual_seed(0))
    assert_counts(torch.bincount(index_of(drawn, x_t), minlength=len(x_t)), expected)


@pytest.mark.parametrize("schedule", [Polynomial(), Polynomial(0.5), Polynomial(3.0), Cosine()])
def test_schedules(schedule):
    t = torch.linspace(0.01, 0.99, 9, dtype=torch.float64, requires_grad=True)
    kappa = schedule(t)
    (slope,) = torch.autograd.grad(kappa.sum(), t)
    torch.testing.assert_close(schedule.derivative(t), slope)
    assert bool((slope > 0).all())
    ends = schedule(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert ends.tolist() == pytest.approx([0.0, 1.0], abs=1e-15)
    torch.testing.assert_close(schedule.inverse(kappa), t)
    assert schedule.inverse(ends).tolist() == pytest.approx([0.0, 1.0], abs=1e-15)
    with pytest.raises(ValueError, match="power"):
        Polynomial(-1.0)


def test_masked_free_energy_terms():
    """E_r contains −#masked·log(1−κ_r) − #revealed·log κ_r: summing over a masked site gives exactly these factors."""
    path = Masked(Categorical(2, shape=3))
    x_t = torch.tensor([2, 0, 2])
    r = torch.tensor(0.6, dtype=torch.float64)
    every_x_1 = states(path, running=False)
    total = path.log_prob(x_t.expand_as(every_x_1), every_x_1, r).exp().sum()
    assert float(total.log()) == pytest.approx(2 * torch.log(2 * (1 - r)).item() + torch.log(r).item())


def test_product_path_adds_logs_and_rejects_strangers():
    space = Space(v=Real(2), h=Categorical(2, shape=3))
    path = ProductPath(space)
    t, r = torch.tensor([0.4, 0.6], dtype=torch.float64)

    def seeded():
        return torch.Generator().manual_seed(0)

    x_1 = space.reference_sample(6, generator=seeded(), dtype=torch.float64)
    x_r = path.sample(x_1, r, generator=seeded())
    x_t = path.sample(x_r, t, r, generator=seeded())
    logs = {
        "log_prob": lambda p, pick: p.log_prob(pick(x_t), pick(x_r), t, r),
        "log_normaliser": lambda p, pick: p.log_normaliser(pick(x_t), t, r),
        "prior_log_prob": lambda p, pick: p.prior_log_prob(pick(x_t), 0.4),
    }
    for label, log in logs.items():
        parts = [log(path[name], lambda state, name=name: state[name]) for name in space]
        torch.testing.assert_close(log(path, lambda state: state), parts[0] + parts[1], msg=label)
    in_numbers = path.log_prob(x_t, x_r, 0.4, 0.6)  # as precise as its real variables
    torch.testing.assert_close(in_numbers, path.log_prob(x_t, x_r, t, r), rtol=1e-14, atol=0)
    draws = {
        "sample": lambda p, pick, g: p.sample(pick(x_r), t, r, generator=g),
        "propose": lambda p, pick, g: p.proposer(pick(x_t), t, r)(5, g),
        "prior_sample": lambda p, pick, g: p.prior_sample((50,), 0.4, generator=g, dtype=torch.float64),
    }
    for label, draw in draws.items():
        together, generator = draw(path, lambda state: state, seeded()), seeded()
        for name in space:
            alone = draw(path[name], lambda state, name=name: state[name], generator)
            assert torch.equal(together[name], alone), (label, name)
    with pytest.raises(ValueError, match="'w'"):
        ProductPath(space, {"w": path["v"]})
    with pytest.raises(ValueError, match="was made for"):
        ProductPath(space, {"h": Masked(Categorical(3, shape=3))})
