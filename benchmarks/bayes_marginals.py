"""The posteriors of `bayes.py`, their marginals, and the errors of estimates.

    spike-slab   inclusion     p(γ_j = 1 | y) of each predictor
                 coefficient   E[γ_jβ_j | y] of each predictor
    mixture      together      p(z_i = z_j | y) of each pair of data
                 fitted        E[μ_{z_i} | y] of each datum
                 labelled      E[μ_j | y] of each label

The first two marginals of the mixture do not depend on labels. The third does: its exact values are all equal, and
unequal estimates mean that labels were visited unequally, which the others do not show.

The error of an estimate m of the marginals e is max_j |m_j − e_j| and mean_j |m_j − e_j|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import egm
from egm.mcmc import Chains, effective_sample_size, r_hat
from egm.spaces import State
from egm.targets import GaussianMixturePosterior, SpikeSlab
from egm.util.seeds import derive_seed


@dataclass(frozen=True)
class Problem:
    """A posterior and its marginals.

    Attributes:
        name: name of the problem.
        target: the posterior.
        features: function of a state [...] whose means are the marginals, [..., k] each.
        exact: the marginals, float64 [k] each.
    """

    name: str
    target: egm.Target
    features: Callable[[State], dict[str, Tensor]]
    exact: dict[str, Tensor]


@dataclass(frozen=True)
class Estimate:
    """Estimated marginals and their standard errors, [k] each; for chains also the worst R-hat and the least ESS."""

    mean: dict[str, Tensor]
    stderr: dict[str, Tensor]
    r_hat: float | None = None
    ess: float | None = None


def spike_slab() -> Problem:
    """Return a regression with two pairs of correlated predictors; it is hard to tell which of a pair has an effect."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 12))
    for cause, shadow in ((0, 1), (2, 3)):
        X[:, shadow] = 0.9 * X[:, cause] + math.sqrt(1 - 0.9**2) * X[:, shadow]
    effects = np.array([1.0, 0.0, -0.7, 0.0, 0.5, 0.3, *np.zeros(6)])
    y = X @ effects + rng.normal(size=40)
    target = SpikeSlab(X, y, noise=1.0, slab=1.0, inclusion=0.25)

    def features(state: State) -> dict[str, Tensor]:
        included = state["gamma"].double()
        return {"inclusion": included, "coefficient": included * state["beta"]}

    exact = {"inclusion": target.inclusion_probabilities, "coefficient": target.coefficient_means}
    return Problem("spike-slab", target, features, exact)


def mixture() -> Problem:
    """Return the posterior of ten data from N(−3, 1), N(0, 1) and N(3, 1)."""
    centres = np.array([-3.0, 0.0, 3.0])
    y = centres[np.arange(10) % 3] + np.random.default_rng(2).normal(size=10)
    target = GaussianMixturePosterior(y, 3, noise=1.0, prior_scale=3.0)
    i, j = torch.triu_indices(len(y), len(y), 1)

    def features(state: State) -> dict[str, Tensor]:
        mu, z = state["mu"].double(), state["z"]
        return {"together": (z[..., i] == z[..., j]).double(), "fitted": mu.gather(-1, z), "labelled": mu}

    exact = {
        "together": target.together_probabilities[i, j],
        "fitted": target.fitted_means,
        "labelled": torch.full((3,), target.component_mean, dtype=torch.float64),
    }
    return Problem("mixture", target, features, exact)


PROBLEMS: dict[str, Callable[[], Problem]] = {"spike-slab": spike_slab, "mixture": mixture}


def of_draws(problem: Problem, draws: egm.Draws) -> Estimate:
    """Estimate from independent draws, with their weights if they have any."""
    found = {name: draws.expect(lambda _name=name, **state: problem.features(state)[_name]) for name in problem.exact}
    mean, stderr = ({name: pair[i].cpu() for name, pair in found.items()} for i in (0, 1))
    return Estimate(mean, stderr)


def of_chains(problem: Problem, chains: Chains) -> Estimate:
    """Estimate by the average over all states of all chains; standard errors use effective sample sizes."""
    features = problem.features(chains.state)
    mean, stderr, worst, least = {}, {}, 1.0, math.inf
    for name, x in features.items():
        entries = [x[..., k] for k in range(x.shape[-1])]
        sizes = [effective_sample_size(entry) for entry in entries]
        mean[name] = x.mean((0, 1))
        stderr[name] = x.std((0, 1)) / torch.tensor(sizes, dtype=torch.float64).sqrt()
        worst = max(worst, *(r_hat(entry) for entry in entries))
        least = min(least, *sizes)
    return Estimate(mean, stderr, r_hat=worst if math.isfinite(worst) else None, ess=least)


def errors(problem: Problem, estimate: Estimate) -> dict[str, float]:
    """Return the largest and mean absolute error of each kind of marginal."""
    found = {}
    for name, exact in problem.exact.items():
        off = (estimate.mean[name] - exact).abs()
        found |= {f"{name}_max": float(off.max()), f"{name}_mean": float(off.mean())}
    return found


def floors(problem: Problem, n: int, *, repeats: int, seed: int) -> dict[str, float]:
    """Return the mean errors of n exact draws."""
    sets = (problem.target.exact_sample(n, seed=derive_seed(seed, i)) for i in range(repeats))
    found = [errors(problem, of_draws(problem, egm.Draws(problem.target.space, state))) for state in sets]
    return {name: sum(each[name] for each in found) / repeats for name in found[0]}


def summarised(found: Sequence[dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Return the mean and standard deviation over repeats."""
    values = {name: [each[name] for each in found] for name in found[0]}
    return {
        name: {"mean": float(np.mean(x)), "std": float(np.std(x, ddof=1)) if len(x) > 1 else None}
        for name, x in values.items()
    }
