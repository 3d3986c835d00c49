"""Pyro models: E = −(log of the joint density of all sites, latent ones at the state) − log |∂T/∂x|.

The model runs once for each call, under `torch.vmap` over the states, with its latent sites conditioned; so it may use
any tensor operation but no `.item()` and no `if` on latent values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints

from egm.adapters.bridge import flattened
from egm.adapters.sites import PRIOR_DRAWS, ModelTarget, Site, check_names, check_support, constraint_of, real_variable
from egm.spaces import Categorical, Space, State
from egm.targets.base import EnergyError
from egm.util.extras import needed


def from_pyro(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    loc: Mapping[str, float] | None = None,
    scale: Mapping[str, float] | None = None,
    batched: bool = True,
) -> ModelTarget:
    """Returns the posterior of a Pyro model as a target, discrete sites included.

    Args:
        model: the model; observed sites are part of it (`obs=`).
        args: its arguments.
        kwargs: its keyword arguments.
        loc: loc of continuous sites by name (in unconstrained coordinates), where the prior's does not suit.
        scale: scale of continuous sites, in the same way.
        batched: run the model once for all states (`torch.vmap`); False runs it state by state, which is slow and takes
            any model.

    The energy is minus the log of the joint density, so log Z is the log evidence.
    """
    pyro: Any = needed("pyro", what="from_pyro", extra="pyro")
    keywords = dict(kwargs or {})
    name = getattr(model, "__name__", type(model).__name__)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)  # seeds the prior draws
        traces = [pyro.poutine.trace(model).get_trace(*args, **keywords) for _ in range(PRIOR_DRAWS)]
    sites = _sites(traces, loc or {}, scale or {})
    check_names(sites, loc, scale, model=name)
    space = Space(**{key: site.variable for key, site in sites.items()})

    def values(state: State) -> State:
        return {key: _value(site, state[key]) for key, site in sites.items()}

    def energy_of_one(state: State) -> Tensor:
        conditioned = pyro.poutine.condition(model, data=values(state))
        with pyro.validation_enabled(False):
            trace = pyro.poutine.trace(conditioned).get_trace(*args, **keywords)
            joint = trace.log_prob_sum()
        return -joint - sum(_log_jacobian(site, state[key]) for key, site in sites.items())

    mapped = torch.vmap(energy_of_one)

    def energy(**state: Tensor) -> Tensor:
        states, batch = flattened(space, state)
        if not batched:
            each = [energy_of_one({k: x[i] for k, x in states.items()}) for i in range(batch.numel())]
            return torch.stack(each).reshape(batch)
        try:
            return mapped(states).reshape(batch)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise EnergyError(
                f"{name} cannot run for many states at once ({str(error).splitlines()[0]}); use"
                " from_pyro(..., batched=False), which is slower"
            ) from error

    return ModelTarget(space, energy, values, f"from_pyro({name})")


def _sites(traces: list[Any], loc: Mapping[str, float], scale: Mapping[str, float]) -> dict[str, Site]:
    found: dict[str, Site] = {}
    for key, node in traces[0].nodes.items():
        if node["type"] != "sample":
            continue
        if type(node["fn"]).__name__ == "_Subsample":
            if node["fn"].subsample_size not in (None, node["fn"].size):
                raise ValueError(f"the plate '{key}' takes random subsamples, but an energy must be deterministic")
            continue
        if node["is_observed"]:
            continue
        check_support(key, [trace.nodes[key]["fn"].support for trace in traces])
        if node["fn"].support.is_discrete:
            found[key] = _discrete(key, node)
        else:
            draws = [trace.nodes[key]["value"] for trace in traces]
            found[key] = _continuous(node, draws, loc.get(key), scale.get(key))
    return found


def _discrete(key: str, node: Mapping[str, Any]) -> Site:
    fn = node["fn"]
    if not fn.has_enumerate_support:
        raise ValueError(
            f"the site '{key}' ({type(fn).__name__}) has infinitely many symbols; a Categorical has finitely many"
        )
    if fn.event_dim:
        raise ValueError(f"the site '{key}' holds arrays of symbols ({type(fn).__name__}); use one symbol each")
    support = fn.enumerate_support(expand=False).reshape(-1)
    return Site(Categorical(len(support), shape=tuple(node["value"].shape)), support=support)


def _continuous(node: Mapping[str, Any], prior: list[Tensor], loc: float | None, scale: float | None) -> Site:
    support, shape = node["fn"].support, tuple(node["value"].shape)
    bijection = biject_to(support)
    draws = torch.stack([bijection.inv(x) for x in prior])
    constraint, real = constraint_of(support, constraints)
    numbers = draws.double().cpu().numpy()
    if real or constraint is not None:
        return Site(real_variable(shape, constraint, numbers, loc, scale))
    return Site(real_variable(tuple(draws.shape[1:]), None, numbers, loc, scale), transform=bijection)


def _value(site: Site, x: Tensor) -> Tensor:
    if isinstance(site.variable, Categorical):
        return site.support.to(x.device)[x]
    return x if site.transform is None else site.transform(x)


def _log_jacobian(site: Site, x: Tensor) -> Tensor | float:
    if site.transform is None:
        return 0.0
    return site.transform.log_abs_det_jacobian(x, site.transform(x)).sum()
