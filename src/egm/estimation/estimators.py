"""One estimator for EGM and EGM-BS: self-normalised importance sampling of the generator.

K proposals x_r^k ~ q_{r|t}(· | x_t) carry the weights w^k ∝ exp(−E_r(x_r^k)). Because q_{r|t} ∝ p_{t|r}(x_t | ·),

    F̂_t(x_t) = Σ_k w^k F_{t|r}(x_t | x_r^k),      Ê_t(x_t) = −log (1/K) Σ_k exp(−E_r(x_r^k)) − log Z_{r|t}(x_t),

with E_1 the target's energy at r = 1 (EGM) or a learned E^φ_r at r = t + ε (EGM-BS). Generators depend on the end point
through the denoiser (or the jump kernel) alone, so the denoiser (or kernel) is averaged. Sums run over chunks of
proposals in log space, so memory is bounded, and the result does not depend on the chunks beyond rounding.

Proposals may follow other laws q instead (`egm.estimation.proposals`), with w^k ∝ exp(−E_r) p_{t|r}(x_t | ·)/q at
x_r^k. The estimate converges to the same generator; its variance is that of these weights. Proposals from the reference
law are not singular at t = 0, where flat proposals of a Gaussian path spread as 1/α_t; the sampler's own steps adapt to
the target.

Where E_r has a gradient, the denoiser of a real variable can be estimated from gradients instead of end points, by the
target score identity ∇ log p_t(x_t) = −(α_r/α_t) E[∇E_r(x_r) | x_t]. This has the smaller variance where σ_t is small.
It needs a density that falls to zero continuously: at a hard wall (E = +inf) a boundary term would be missing.

Over short steps the weights are nearly even, and most of the error comes from the sample mean of the proposals. For
real variables the exact mean of the proposals is known, so *centred* estimates remove this error,

    E[x_r | x_t] ≈ Σ_k (w^k − 1/K) x_r^k + E_q[x_r],

which multiplies the variance by a factor of order 1 − ESS. Where the weights are uneven, centring increases the
variance instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from egm.estimation.proposals import OwnSteps, make_proposals
from egm.paths.base import Proposal, Time
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.spaces import Space, State
from egm.util.broadcast import over

DRAW_TOGETHER = 128  # proposals drawn by one call, for any chunk size: random numbers do not depend on memory
TEMPORARIES = 6  # tensors of a proposal's size that are alive at once


@dataclass(frozen=True)
class Estimate:
    """The estimate from K weighted proposals at x_t.

    Attributes:
        prediction: of each variable, the denoiser (mean [..., *shape], table [..., *shape, n]) or the jump kernel.
        energy: Ê_t, [...]; +inf where every proposal has zero density.
        ess: effective sample size of the weights as a fraction of K, [...]; zero where every proposal has zero density;
            the prediction there is meaningless.
    """

    prediction: State
    energy: Tensor
    ess: Tensor


EnergyAndGradient: TypeAlias = Callable[[State, Time], tuple[Tensor, State]]


def estimate(
    energy: Callable[[State, Time], Tensor],
    path: ProductPath,
    processes: Mapping[str, Process[Any]],
    x_t: State,
    t: Time,
    *,
    r: Time = 1.0,
    count: int,
    proposal: Proposal | OwnSteps = "flat",
    scores: EnergyAndGradient | None = None,
    centred: bool = False,
    generator: torch.Generator | None = None,
    memory: int = 2**30,
    state_bytes: int = 0,
) -> Estimate:
    """Estimates the marginal generator's parameters and the intermediate energy at latent states x_t.

    Args:
        energy: E_r in latent coordinates, called with proposals [k, ..., *shape] and r; returns [k, ...]. Symbols come
            in narrow dtypes (`Space.narrowed`).
        path: the path of every variable.
        processes: the process of every variable; it defines the averaged quantity.
        x_t: latent states [..., *shape].
        t: their times, [...] or a number.
        r: the time of the end points, t < r ≤ 1.
        count: number K of proposals for each state.
        proposal: "flat" (as in the paper), "reference", or the sampler's own steps.
        scores: called instead of `energy`, returns E_r and its gradients with respect to the real variables,
            which are averaged instead of their end points; for processes that predict the denoiser.
        centred: remove the error of the proposals' sample mean, for the same processes; not together with `scores`.
        generator: source of every random number.
        memory: bytes that proposals and their temporaries may take.
        state_bytes: bytes that `energy` itself takes for each proposal of each state: activations of a network, or
            symbols widened for a user's function (`wide_bytes`).
    """
    _check(count, t, r, both=centred and scores is not None)
    batch = path.space.batch_shape(x_t, latent=True)
    x_t = path.space.narrowed(x_t)
    proposals = make_proposals(path, processes, x_t, t, r, law=proposal)
    chunk = chunk_size(processes, x_t, count=count, memory=memory, tables=proposals.tables)
    most = slice_size(state_bytes * batch.numel(), memory)
    denoised = {name: process for name, process in processes.items() if process.predicts_mean}
    sums = _Sums(processes, x_t, t, plain=denoised if centred else {})
    for start in range(0, count, chunk):
        stop = min(start + chunk, count)
        blocks = range(start, stop, DRAW_TOGETHER)
        drawn = [proposals.draw(min(DRAW_TOGETHER, stop - first), generator) for first in blocks]
        x_r = {name: torch.cat([part[name] for part in drawn]) for name in x_t}
        slices = [{name: x[i : i + most] for name, x in x_r.items()} for i in range(0, stop - start, most)]
        averaged = x_r
        if scores is None:
            log_w = -torch.cat([energy(part, r) for part in slices])
        else:
            values, gradients = zip(*(scores(part, r) for part in slices), strict=True)
            log_w, averaged = -torch.cat(values), {**x_r, **_scores(gradients)}
        if proposals.log_factor is not None:
            log_w = log_w + proposals.log_factor(x_r)
        sums.add(log_w, averaged, x_r)
    log_mean, means, ess = sums.means(count)
    known = proposals.means() if centred else {}
    means |= {name: means[name] - plain / count + known[name] for name, plain in sums.plain.items()}
    scored = denoised if scores is not None else {}
    prediction = {
        name: scored[name].path.denoised_by_score(x_t[name], means[name], t, r)
        if name in scored
        else process.prediction(x_t[name], means[name], t, r)
        for name, process in processes.items()
    }
    return Estimate(prediction, (-log_mean - proposals.constant).expand(batch), ess)


class _Sums:
    """Σ w, Σ w² and Σ w · (averaged quantity) over chunks of proposals, in units of the largest weight so far.

    Args:
        processes, x_t, t: see `estimate`.
        plain: names of the variables whose end points are also summed without weights.
    """

    def __init__(
        self, processes: Mapping[str, Process[Any]], x_t: State, t: Time, *, plain: Mapping[str, object]
    ) -> None:
        self.processes, self.x_t, self.t = processes, x_t, t
        self.peak: Tensor | None = None
        self.total = self.square = torch.zeros(())
        self.averages: State = {}
        self.plain = dict.fromkeys(plain, torch.zeros(()))

    def add(self, log_w: Tensor, averaged: State, x_r: State) -> None:
        """Adds a chunk: log-weights [k, ...], averaged quantities, and end points."""
        peak = log_w.amax(0) if self.peak is None else torch.maximum(self.peak, log_w.amax(0))
        # Where every weight so far is zero the peak is −inf; any finite number keeps exp(−inf − peak) at zero.
        safe = torch.where(peak == -math.inf, 0.0, peak)
        shrink = torch.zeros_like(safe) if self.peak is None else torch.exp(self.peak - safe)
        w = torch.exp(log_w - safe)
        self.total = self.total * shrink + w.sum(0)
        self.square = self.square * shrink.square() + w.square().sum(0)
        for name, process in self.processes.items():
            added = process.average(self.x_t[name], averaged[name], w, self.t)
            old = self.averages.get(name)
            self.averages[name] = added if old is None else old * over(shrink, old) + added
        self.plain = {name: plain + x_r[name].sum(0) for name, plain in self.plain.items()}
        self.peak = peak

    def means(self, count: int) -> tuple[Tensor, State, Tensor]:
        """Returns log mean w, the weighted means, and the effective sample size as a fraction of `count`."""
        if self.peak is None:
            raise ValueError("there are no proposals to average")
        empty = self.total == 0
        divisor = torch.where(empty, 1.0, self.total)
        log_total = torch.where(empty, 0.0, self.peak) + torch.log(divisor)
        log_mean = torch.where(empty, -math.inf, log_total - math.log(count))
        means = {name: average / over(divisor, average) for name, average in self.averages.items()}
        ess = self.total.square() / (torch.where(empty, 1.0, self.square) * count)
        return log_mean, means, ess


def _check(count: int, t: Time, r: Time, *, both: bool) -> None:
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if isinstance(t, float) and isinstance(r, float) and not 0 <= t < r <= 1:
        raise ValueError(f"times must fulfil 0 <= t < r <= 1, got t={t} and r={r}")
    if both:
        raise ValueError("only averages of end points can be centred, not those of scores; leave out centred or scores")


def _scores(gradients: Sequence[State]) -> State:
    """Returns −∇E_r of all proposals; zero where the gradient is not finite (zero density, so zero weight)."""
    joined = {name: torch.cat([gradient[name] for gradient in gradients]) for name in gradients[0]}
    return {name: torch.where(torch.isfinite(x), -x, 0.0) for name, x in joined.items()}


def slice_size(row: int, memory: int) -> int:
    """Returns the number of proposals of every state in one call of an energy, if one takes `row` bytes."""
    if row > memory:
        raise ValueError(
            f"memory={memory} bytes is too small: the energy of one proposal for each state of this batch takes {row};"
            " raise memory or lower the batch size"
        )
    return memory // max(1, row)


def wide_bytes(space: Space) -> int:
    """Returns the bytes of an energy's temporaries for one state with symbols as int64."""
    return TEMPORARIES * torch.int64.itemsize * sum(variable.sites for variable in space.categorical.values())


def chunk_size(processes: Mapping[str, Process[Any]], x_t: State, *, count: int, memory: int, tables: int = 0) -> int:
    """Returns how many proposals of every state fit into `memory`: `count`, or a multiple of `DRAW_TOGETHER`.

    `tables` are bytes that a proposal of every state takes in addition to its end points.
    """
    sizes = {name: x.numel() * x.element_size() * processes[name].expansion for name, x in x_t.items()}
    each = TEMPORARIES * (tables + sum(sizes.values()))
    if each == 0:
        raise ValueError("the batch of states is empty")
    block = min(count, DRAW_TOGETHER)
    blocks = memory // (each * block)
    if blocks < 1:
        raise ValueError(
            f"memory={memory} bytes is too small: {block} proposals for this batch take {each * block};"
            " raise memory or lower the batch size"
        )
    return min(count, int(blocks) * block)
