"""NumPyro models: E = −(log of the joint density of all sites, latent ones at the state) − log |∂T/∂x|.

NumPyro computes the log-density (`log_density`), mapped over states by `jax.vmap` and compiled; JAX computes gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from egm.adapters.bridge import flattened
from egm.adapters.jax_energy import JaxEnergy
from egm.adapters.sites import PRIOR_DRAWS, ModelTarget, Site, check_names, check_support, constraint_of, real_variable
from egm.spaces import Categorical, Space, State
from egm.util.extras import needed


def from_numpyro(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    loc: Mapping[str, float] | None = None,
    scale: Mapping[str, float] | None = None,
) -> ModelTarget:
    """Returns the posterior of a NumPyro model as a target, discrete sites included.

    Args:
        model: the model; observed sites are part of it (`obs=`).
        args: its arguments.
        kwargs: its keyword arguments.
        loc: loc of continuous sites by name (in unconstrained coordinates), where the prior's does not suit.
        scale: scale of continuous sites, in the same way.

    The energy is minus the log of the joint density, so log Z is the log evidence.
    """
    numpyro: Any = needed("numpyro", what="from_numpyro", extra="numpyro")
    util: Any = needed("numpyro.infer.util", what="from_numpyro", extra="numpyro")
    jax: Any = needed("jax", what="from_numpyro", extra="numpyro")
    keywords = dict(kwargs or {})
    name = getattr(model, "__name__", type(model).__name__)
    traces = [
        numpyro.handlers.trace(numpyro.handlers.seed(model, key)).get_trace(*args, **keywords)
        for key in range(PRIOR_DRAWS)  # not mapped: compiling samplers takes longer than running them
    ]
    latent = {key: node for key, node in traces[0].items() if node["type"] == "sample" and not node["is_observed"]}
    for key in latent:
        check_support(key, [trace[key]["fn"].support for trace in traces])
    prior = {key: np.stack([np.asarray(trace[key]["value"]) for trace in traces]) for key in latent}
    sites = {
        key: _discrete(key, node)
        if node["fn"].support.is_discrete
        else _continuous(node, prior[key], (loc or {}).get(key), (scale or {}).get(key))
        for key, node in latent.items()
    }
    check_names(sites, loc, scale, model=name)
    space = Space(**{key: site.variable for key, site in sites.items()})

    def value(key: str, x: Any) -> Any:
        site = sites[key]
        if isinstance(site.variable, Categorical):
            return site.support[x]
        return x if site.transform is None else site.transform(x)

    def energy_of_one(**state: Any) -> Any:
        joint, _ = util.log_density(model, args, keywords, {key: value(key, x) for key, x in state.items()})
        moved = [key for key, site in sites.items() if site.transform is not None]
        inner = [sites[k].transform.log_abs_det_jacobian(state[k], value(k, state[k])).sum() for k in moved]
        return -joint - sum(inner)

    bridge = JaxEnergy(space, energy_of_one, batched=False, by="from_numpyro")

    def values(state: State) -> State:
        found: State = {}
        states, batch = flattened(space, state)
        for key, x in states.items():
            seen = np.array(jax.vmap(lambda one, key=key: value(key, one))(bridge._to_jax(x)))
            found[key] = torch.from_numpy(seen).to(x.device).reshape(*batch, *seen.shape[1:])
        return found

    def energy(**state: Tensor) -> Tensor:
        return bridge(**state)

    return ModelTarget(space, energy, values, f"from_numpyro({name})")


def _discrete(key: str, node: Mapping[str, Any]) -> Site:
    fn, shape = node["fn"], tuple(np.shape(node["value"]))
    if not fn.has_enumerate_support:
        raise ValueError(
            f"the site '{key}' ({type(fn).__name__}) has infinitely many symbols; a Categorical has finitely many"
        )
    if len(fn.event_shape):
        raise ValueError(f"the site '{key}' holds arrays of symbols ({type(fn).__name__}); use one symbol each")
    support = fn.enumerate_support(expand=False).reshape(-1)
    return Site(Categorical(len(support), shape=shape), support=support)


def _continuous(node: Mapping[str, Any], prior: Any, loc: float | None, scale: float | None) -> Site:
    distributions: Any = needed("numpyro.distributions", what="from_numpyro", extra="numpyro")
    support = node["fn"].support
    bijection = distributions.biject_to(support)
    draws = np.asarray(bijection.inv(prior), dtype=np.float64)
    constraint, real = constraint_of(support, distributions.constraints)
    if real or constraint is not None:
        return Site(real_variable(tuple(np.shape(node["value"])), constraint, draws, loc, scale))
    return Site(real_variable(tuple(draws.shape[1:]), None, draws, loc, scale), transform=bijection)
