"""Steps with the generator frozen at t: Euler and tau-leaping, and where their generators are finite."""

import pytest
import torch

from egm.paths import VE, VP, CondOT, Cosine, Masked, Polynomial, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow, Jump
from egm.spaces.variables import Categorical, Real
from support.cases import DISCRETE, GAUSSIAN, SYMBOLS, pairs, random_value, states
from support.stats import assert_counts, assert_mean, assert_variance


@pytest.mark.parametrize("path", pairs(DISCRETE, SYMBOLS))
def test_frozen_rates_jump_as_they_say(path):
    """P(jump) is hλ (Euler, at most one) or 1 − e^{−hλ} (tau-leaping), its end in proportion to the rates."""
    process, x_t, generator = DiscreteJump(path), states(path, running=True), torch.Generator().manual_seed(0)
    denoised = torch.rand(*x_t.shape, path.variable.size, generator=generator, dtype=torch.float64)
    denoised = denoised * path.variable.legal(x_t)
    denoised = denoised / denoised.sum(-1, keepdim=True)
    rates = process.marginal(x_t, denoised, torch.tensor(0.4, dtype=torch.float64))
    total = rates.sum(-1)
    here = torch.nn.functional.one_hot(x_t, path.alphabet).bool()
    if isinstance(path, Uniform):
        assert float(0.6 * total.max()) > 1  # the long step below is one that Euler has to cut
    for r in (0.41, 1.0):
        h = r - 0.4
        for table, jump in (
            (process.euler_table(x_t, denoised, 0.4, r), (h * total).clamp(max=1)),
            (process.tau_leap_table(x_t, denoised, 0.4, r), 1 - torch.exp(-h * total)),
        ):
            torch.testing.assert_close(table.sum(-1), torch.ones_like(total))
            torch.testing.assert_close(table[here], 1 - jump.flatten())
            torch.testing.assert_close(
                table[..., : path.variable.size] * ~here[..., : path.variable.size],
                jump[..., None] * rates / total.clamp(min=1e-300)[..., None],
            )


@pytest.mark.parametrize("path", pairs(DISCRETE, {"two-sites": SYMBOLS["two-sites"]}))
def test_frozen_steps_follow_their_tables(path):
    process, x_t, generator = DiscreteJump(path), states(path, running=True)[-1], torch.Generator().manual_seed(0)
    denoised = torch.tensor([[0.3, 0.7], [0.8, 0.2]], dtype=torch.float64)
    many = (20_000, 2)
    for step, table in ((process.euler, process.euler_table), (process.tau_leap, process.tau_leap_table)):
        x_r = step(x_t.expand(many), denoised.expand(*many, 2), 0.4, 0.7, generator=generator)
        one, two = table(x_t, denoised, 0.4, 0.7)
        index = x_r[:, 0] * path.alphabet + x_r[:, 1]
        assert_counts(torch.bincount(index, minlength=path.alphabet**2), torch.outer(one, two).flatten())


@pytest.mark.parametrize("make", GAUSSIAN.values(), ids=GAUSSIAN)
def test_euler_steps_of_reals_follow_the_generator(make):
    path = make(Real(2))
    x_t = random_value(path, 0).expand(20_000, 2)
    denoised = random_value(path, 1).expand(20_000, 2)
    t, h = torch.tensor([0.4, 0.1], dtype=torch.float64)
    for process in (Flow(path), Diffusion(path)):
        moves, leaps = (
            step(x_t, denoised, t, t + h, generator=torch.Generator().manual_seed(0))
            for step in (process.euler, process.tau_leap)
        )
        assert torch.equal(moves, leaps)
        generator = process.marginal(x_t[0], denoised[0], t)
        if isinstance(process, Flow):
            torch.testing.assert_close(moves[0], x_t[0] + h * generator.drift)
        else:
            assert_mean(moves, x_t[0] + h * generator.drift)
            assert_variance(moves, (h * generator.diffusion).expand(2))


def test_where_generators_are_finite():
    zero, later = torch.tensor(0.0), torch.tensor(0.01)
    symbols = Categorical([2, 3])
    singular = [Diffusion(CondOT(Real(2))), Diffusion(VP(Real(2))), DiscreteJump(Uniform(symbols))]
    singular += [
        DiscreteJump(Uniform(symbols, schedule=Cosine())),
        DiscreteJump(Masked(symbols, schedule=Polynomial(0.5))),
    ]
    finite = [Diffusion(VE(Real(2))), Flow(CondOT(Real(2))), Jump(VP(Real(2))), DiscreteJump(Masked(symbols))]
    assert not any(process.finite_at(zero) for process in singular)
    assert all(process.finite_at(later) for process in singular)
    assert all(process.finite_at(zero) for process in finite)
