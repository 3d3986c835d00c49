"""The bootstrap of a masked path in the limit r → t: one site is revealed at a time, so no end points are drawn.

With E_t the intermediate energy, i a masked site of x_t and x_t[i=y] the same state with that site revealed as y,

    p(x_1^i = y | x_t) = softmax_y(−E_t(x_t[i=y])),
    E_t(x_t) = −log Σ_y exp(−E_t(x_t[i=y])) − log((1−κ_t)/κ_t)         for every masked i,

at equal t on both sides, on any space that the masked variable is part of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from egm.paths.product import ProductPath
from egm.spaces import State


@dataclass(frozen=True)
class SingleSite:
    """Estimates at some masked sites of x_t from the energies of neighbouring states.

    Attributes:
        table: p(x_1^i = y | x_t), [..., *shape, n], zero at the sites that were not chosen.
        sites: number of masked sites that each chosen site represents, [..., *shape]; zero at all other sites, and at
            sites where every symbol has zero density.
        energy: E_t(x_t) from its neighbours, a mean over the chosen sites, [...]; NaN where no site is masked.
    """

    table: Tensor
    sites: Tensor
    energy: Tensor


def single_site(
    energy: Callable[[State, Tensor], Tensor],
    path: ProductPath,
    name: str,
    x_t: State,
    t: Tensor,
    *,
    count: int,
    generator: torch.Generator | None = None,
) -> SingleSite:
    """Evaluates up to `count` random masked sites of the variable `name` in each state of a batch [b].

    `energy` is E_t on latent states [n, count, b, ...]; it is called once, with t > 0.
    """
    if name not in path.revealing:
        kind = type(path[name]).__name__
        raise ValueError(f"the single-site bootstrap reveals masked sites, but '{name}' follows {kind}")
    part = path.revealing[name]
    variable, x = part.variable, x_t[name]
    batch, n = len(x), variable.size
    flat = x.reshape(batch, -1)
    masked = flat == variable.mask
    count = min(count, flat.shape[1])
    order = torch.rand(flat.shape, generator=generator, device=x.device) + masked
    chosen = order.topk(count, dim=1).indices  # masked sites come first
    real = masked.gather(1, chosen)

    symbols = torch.arange(n, device=x.device)[:, None, None, None].expand(n, count, batch, 1)
    if not isinstance(counts := variable.counts(x), int):  # energies never see a symbol that a site cannot hold
        symbols = torch.minimum(symbols, counts.flatten()[chosen].T[None, :, :, None] - 1)
    index = chosen.T[None, :, :, None].expand(n, count, batch, 1)
    neighbours = flat.expand(n, count, *flat.shape).scatter(-1, index, symbols).reshape(n, count, *x.shape)
    others = {k: v.expand(n, count, *v.shape) for k, v in x_t.items()}
    log_w = -energy({**others, name: neighbours}, t)
    legal = variable.legal(x)
    if legal.ndim > 1:
        log_w = log_w.masked_fill(~legal.reshape(-1, n)[chosen].permute(2, 1, 0), -torch.inf)

    kappa = part.kappa(part.over_batch(t, x)).to(log_w.dtype)
    each = -torch.logsumexp(log_w, 0) - (torch.log1p(-kappa) - torch.log(kappa))  # [count, b]
    looked = real.sum(1)
    # Where every neighbour has zero density, x_t has zero density too (or t = 0), and there is no table.
    empty = log_w.amax(0) == -torch.inf
    mean = torch.where(real.T, each.masked_fill(empty, torch.inf), 0.0).sum(0) / looked.clamp(min=1)
    said = real & ~empty.T
    tables = torch.softmax(log_w.masked_fill(empty, 0.0), 0).permute(2, 1, 0) * said[..., None]
    share = (masked.sum(1) / looked.clamp(min=1))[:, None] * said
    table = torch.zeros(*flat.shape, n, dtype=tables.dtype, device=x.device)
    table = table.scatter(1, chosen[..., None].expand(*chosen.shape, n), tables)
    sites = torch.zeros(flat.shape, dtype=tables.dtype, device=x.device).scatter(1, chosen, share.to(tables.dtype))
    return SingleSite(table.reshape(*x.shape, n), sites.reshape(x.shape), torch.where(looked > 0, mean, torch.nan))
