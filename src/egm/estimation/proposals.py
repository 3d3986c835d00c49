"""Proposal laws q of importance sampling for end points x_r, and the ratio of p_{t|r}(x_t | ·) to q:

    flat        q_{r|t}(x_r | x_t)     = p_{t|r}(x_t | x_r) / Z_{r|t}(x_t)
    reference   q^ref_{r|t}(x_r | x_t) = p_{t|r}(x_t | x_r) p^ref_r(x_r) / p^ref_t(x_t)
    sampler     K_θ(x_r | x_t), the sampler's own step with its current prediction: for reals
                N(A x_t + B x̂_1, (V + B² err_t) I), for symbols the bridge averaged over the table

For every law q, E_t(x_t) = −log E_q[e^{−E_r(x_r)} p_{t|r}(x_t | x_r)/q(x_r | x_t)]. The first two laws do not depend
on the target, and every coordinate adds to the variance of log w. Over short steps the sampler's steps approach the law
of x_r given x_t, for which the weights are even; before training they follow the reference law. For reals they are one
Gaussian, so the law of x_r given x_t must not have several modes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from egm.paths.base import Proposal, Time
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.processes.diffusion import Diffusion
from egm.spaces import State


@dataclass(frozen=True)
class OwnSteps:
    """The sampler's steps at x_t.

    Attributes:
        prediction: the sampler's denoisers (means, tables) at x_t.
        errors: error variances of the means, by which steps are widened, [..., *sites].
    """

    prediction: State
    errors: State


@dataclass(frozen=True)
class Proposals:
    """Proposed end points x_r for states x_t.

    Attributes:
        draw: draw(count, generator) returns new end points, with `count` as the first axis.
        log_factor: log p_{t|r}(x_t | x_r)/q(x_r | x_t) without `constant`; None if the ratio is constant.
        constant: the part of this log-ratio that does not depend on x_r, [...].
        means: returns E_q[x_r] of every real variable.
        tables: bytes that one proposal of every state takes in addition to its end points, for tables of its symbols.
    """

    draw: Callable[[int, torch.Generator | None], State]
    log_factor: Callable[[State], Tensor] | None
    constant: Tensor
    means: Callable[[], State]
    tables: int = 0


def make_proposals(
    path: ProductPath, processes: Mapping[str, Process[Any]], x_t: State, t: Time, r: Time, *, law: Proposal | OwnSteps
) -> Proposals:
    """Returns the proposals of a law."""
    if isinstance(law, OwnSteps):
        return _of_sampler(path, processes, x_t, t, r, own=law)
    return _of_path(path, x_t, t, r, law=law)


def _of_path(path: ProductPath, x_t: State, t: Time, r: Time, *, law: Proposal) -> Proposals:
    """Returns flat proposals, or proposals from the reference law."""

    def means() -> State:
        return {name: part.proposal_law(x_t[name], t, r, law=law)[0] for name, part in path.gaussian.items()}

    draw = path.proposer(x_t, t, r, law=law)
    if law == "flat":
        return Proposals(draw, None, path.log_normaliser(x_t, t, r), means)
    return Proposals(draw, lambda x_r: -path.prior_log_prob(x_r, r), path.prior_log_prob(x_t, t), means)


def _of_sampler(
    path: ProductPath, processes: Mapping[str, Process[Any]], x_t: State, t: Time, r: Time, *, own: OwnSteps
) -> Proposals:
    """Returns the sampler's own steps; a flow is replaced by the diffusion on its path, which has a density."""
    bridges = {name: Diffusion(p.path) for name, p in processes.items() if p.predicts_mean}
    symbols = {name: process for name, process in processes.items() if name not in bridges}

    def draw(count: int, generator: torch.Generator | None) -> State:
        def each(x: Tensor) -> Tensor:
            return x.expand(count, *x.shape)

        found: State = {}
        for name in path.paths:
            x, known = each(x_t[name]), each(own.prediction[name])
            if name in bridges:
                error = each(own.errors[name])
                found[name] = bridges[name].step(x, known, t, r, error=error, generator=generator)
            else:
                found[name] = symbols[name].step(x, known, t, r, generator=generator)
        return path.space.narrowed(found)

    def log_factor(x_r: State) -> Tensor:
        total = path.log_prob(x_t, x_r, t, r)
        for name, bridge in bridges.items():
            total = total - bridge.log_step(x_r[name], x_t[name], own.prediction[name], t, r, error=own.errors[name])
        for name, process in symbols.items():
            total = total - process.log_step(x_r[name].long(), x_t[name], own.prediction[name], t, r)
        return total

    def means() -> State:
        centres = {name: b.path.variable.project(own.prediction[name]) for name, b in bridges.items()}
        return {name: bridges[name].bridge(x_t[name], x_1, t, r)[0] for name, x_1 in centres.items()}

    constant = next(iter(own.prediction.values())).new_zeros(path.space.batch_shape(x_t, latent=True))
    tables = sum(own.prediction[name].nbytes + x_t[name].numel() * torch.int64.itemsize for name in symbols)
    return Proposals(draw, log_factor, constant, means, tables)
