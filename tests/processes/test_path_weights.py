"""Exact path weights: E[w] = Z for any denoiser and any grid 0 = t_0 < … < t_T = 1, with

    log w = −E(x_1) − log p_0(x_0) + Σ_i [ log p_{t_i|t_{i+1}}(x_i | x_{i+1}) − log K(x_{i+1} | x_i) ].

Symbols: by enumeration of all paths, whose law comes from Bayes' rule rather than from `log_step`. Reals: by simulation
with `step`. Either test must reject a density that is not the law of the simulated step.
"""

import itertools
import math

import pytest
import torch
from scipy.integrate import quad

from egm.paths import Cosine, Masked, Polynomial, Uniform
from egm.processes import Diffusion, DiscreteJump
from egm.spaces.variables import Categorical, Real
from support.cases import GAUSSIAN, states
from support.stats import assert_mean

GRIDS = [(0.0, 1.0), (0.0, 0.35, 1.0), (0.0, 0.2, 0.7, 1.0)]

# ---------------------------------------------------------------------- symbols


class OffByAFactor(DiscreteJump):
    """Forgets a factor in the density."""

    def log_step(self, x_r, x_t, prediction, t, r):
        return super().log_step(x_r, x_t, prediction, t, r) + math.log(1.01)


class OtherDenoiser(DiscreteJump):
    """Evaluates the density, which is normalised, of another denoiser than the simulated one."""

    def log_step(self, x_r, x_t, prediction, t, r):
        return super().log_step(x_r, x_t, 0.9 * prediction + 0.1 * prediction.mean(0), t, r)


def untrained_table(path, x_t, seed):
    """A random denoiser: a table for every state and site."""
    table = torch.rand(*x_t.shape, path.variable.size, generator=torch.Generator().manual_seed(seed)).double() + 0.05
    table = table * path.variable.legal(x_t)
    return table / table.sum(-1, keepdim=True)


def step_law(path, x_t, x_r, table, t, r):
    """K(x_r | x_t) = Σ_z Π_i D_i(z_i | x_t) p_{r|1,t}(x_r | z, x_t) by Bayes' rule on whole states, [x_t, x_r].

    At sites that a masked path has revealed the end point is known, whatever the denoiser says.
    """
    z = states(path, running=False)
    if isinstance(path, Masked):
        revealed = (x_t != path.variable.mask)[..., None]
        table = torch.where(revealed, path.one_hot(x_t, table.dtype)[..., :-1], table)
    picked = table[:, None].expand(-1, len(z), -1, -1).gather(-1, z[None, ..., None].expand(len(x_t), -1, -1, 1))
    backward = path.log_prob(x_t[:, None], x_r, t, r).exp()  # [x_t, x_r]
    noised = path.log_prob(x_t[:, None], z, t).exp()  # [x_t, z]
    mixing = torch.where(noised > 0, picked[..., 0].prod(-1) / noised, 0.0)
    to_end = path.log_prob(x_r[:, None], z, r).exp() if r < 1 else torch.eye(len(z), dtype=torch.float64)
    return backward * (mixing @ to_end.T)


def mean_weight(path, process, grid, energy):
    """Σ over all paths of (their probability) · w, and the sum of the probabilities."""
    x_t = states(path, running=True)
    log_prior = path.prior_log_prob(x_t, torch.zeros((), dtype=torch.float64))
    law, log_w = log_prior.exp(), -log_prior
    for i, (t, r) in enumerate(itertools.pairwise(torch.tensor(grid, dtype=torch.float64))):
        x_r = states(path, running=float(r) < 1)
        table = untrained_table(path, x_t, i)
        law = law[..., None] * step_law(path, x_t, x_r, table, t, r)
        shape = (len(x_t), len(x_r), *x_t.shape[1:])
        start, end = x_t[:, None].expand(shape), x_r.expand(shape)
        log_k = process.log_step(end, start, table[:, None].expand(*shape, -1), t, r)
        log_w = log_w[..., None] + path.log_prob(start, end, t, r) - log_k
        x_t = x_r
    possible = law > 0
    return float((law * (log_w - energy).exp())[possible].sum()), float(law.sum())


@pytest.mark.parametrize("grid", GRIDS, ids=len)
@pytest.mark.parametrize("schedule", [Polynomial(), Cosine()], ids=["linear", "cosine"])
@pytest.mark.parametrize("kind", [Masked, Uniform])
def test_mean_weight_is_the_partition_function(kind, schedule, grid):
    path = kind(Categorical([2, 3]), schedule=schedule)
    energy = torch.randn(6, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    z = float((-energy).exp().sum())
    total, probability = mean_weight(path, DiscreteJump(path), grid, energy)
    assert probability == pytest.approx(1, abs=1e-12)
    assert total == pytest.approx(z, rel=1e-10)
    for broken in (OffByAFactor(path), OtherDenoiser(path)):
        assert abs(mean_weight(path, broken, grid, energy)[0] / z - 1) > 1e-4, broken


# ---------------------------------------------------------------------- reals

ERROR = 0.8


def simulated_weights(path, process, grid, *, log_step_error=ERROR, n=40_000):
    """Independent draws of w for E(x) = (|x|² − 1)², under a denoiser that is nowhere near the truth."""
    generator = torch.Generator().manual_seed(0)
    x = path.prior_sample((n,), generator=generator, dtype=torch.float64)
    log_w = -path.prior_log_prob(x)
    for t, r in itertools.pairwise(grid):
        denoised = 0.3 * torch.tanh(x) + 0.1 - 0.2 * t
        x_r = process.step(x, denoised, t, r, error=ERROR, generator=generator)
        log_k = process.log_step(x_r, x, denoised, t, r, error=log_step_error)
        log_w = log_w + path.log_prob(x, x_r, t, r) - log_k
        x = x_r
    return (log_w - (x.reshape(n, -1).square().sum(-1) - 1).square()).exp()


@pytest.mark.parametrize("variable", [Real(()), Real((2, 1), centered=True)], ids=["line", "centred"])
@pytest.mark.parametrize("make", GAUSSIAN.values(), ids=GAUSSIAN)
def test_mean_weight_of_the_widened_diffusion(make, variable):
    """Two steps on one degree of freedom; E[w] = ∫ e^{−E} in orthonormal coordinates."""
    path, grid = make(variable), (0.0, 0.5, 1.0)
    z = quad(lambda s: math.exp(-((s * s - 1) ** 2)), -6, 6)[0]
    w = simulated_weights(path, Diffusion(path), grid)
    assert_mean(w, z, "E[w]")
    with pytest.raises(AssertionError):
        assert_mean(1.15 * w, z)  # a lost factor would be seen
    with pytest.raises(AssertionError):
        assert_mean(simulated_weights(path, Diffusion(path), grid, log_step_error=0.5 * ERROR), z)
