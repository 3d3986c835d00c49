"""A perceptron for any space that reads every site twice: together with all other sites, and alone:

    c = residual blocks of all features as in `ResidualMLP`,         h_i = W [features of site i] + P_i N(c),
    h_i ← h_i + A SiLU(B N(h_i) + U τ(t)),                           output of site i = head(N(h_i)),

N(h) = (h − mean)/std. W, A, B, U and the head are shared by the sites of a variable; every site has its own P_i. The
end point of a site depends on its value at t more than on any other site; a plain perceptron has to learn this for each
site separately, this network once for all sites. With many coordinates it learns from a fraction of the draws. A scalar
is one number computed from c plus the sum over sites of one number per site, because energies have single-site terms.

Variables of the same shape are assumed to share their sites: the features of site i are the features of all these
variables at i. In a model with switches (a symbol selects the law of the coordinate at its site), the mean of a
coordinate depends mostly on the symbol at its site, and the symbol on the coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu

from egm.networks.base import Body, Head, not_negative, positive
from egm.networks.embeddings import TIME_FEATURES, TOKEN_FEATURES, SymbolEmbedding, TimeEmbedding, join, sinusoids
from egm.networks.mlp import perceptron
from egm.spaces import Categorical, Real, Space, State


class SiteMLP(Body):
    """`depth` residual blocks of `width` units that see all sites, then `site_depth` of `site_width` for each site.

    Args:
        frequencies: number of sines and of cosines added to every real coordinate (`egm.networks.embeddings`).
    """

    def __init__(
        self,
        space: Space,
        outputs: Mapping[str, tuple[int, ...]],
        *,
        width: int = 128,
        depth: int = 3,
        site_width: int = 32,
        site_depth: int = 2,
        frequencies: int = 3,
    ) -> None:
        super().__init__(space, outputs)
        positive(width=width, depth=depth, site_width=site_width, site_depth=site_depth)
        not_negative(frequencies=frequencies)
        self.width, self.depth, self.site_width, self.site_depth = width, depth, site_width, site_depth
        self.frequencies = frequencies
        self.time = TimeEmbedding()
        readers = {name: _Reader(variable, frequencies) for name, variable in space.variables.items()}
        self.readers = nn.ModuleList(readers.values())
        self.sites = {name: reader.sites for name, reader in readers.items()}
        shapes = {name: variable.latent_shape for name, variable in space.variables.items()}
        self.sharing = {name: [other for other in shapes if shapes[other] == shapes[name]] for name in shapes}
        self.first = nn.Linear(sum(reader.sites * reader.features for reader in readers.values()), width)
        self.first_time = nn.Linear(TIME_FEATURES, width, bias=False)
        self.blocks = nn.ModuleList(perceptron(width, nn.Linear(width, width)) for _ in range(depth))
        options = {"width": width, "site_width": site_width, "depth": site_depth}

        def sites(name: str, shape: tuple[int, ...]) -> _Sites:
            return _Sites(sum(readers[other].features for other in self.sharing[name]), space[name], shape, **options)

        #: for a scalar, one variable of each shape represents all variables that share its sites
        self.terms = [name for name, others in self.sharing.items() if name == others[0]]
        self.predictors = nn.ModuleList(
            sites(name, shape)
            if name in readers
            else _Scalar(perceptron(width, Head(width, ())), [sites(term, shapes[term]) for term in self.terms])
            for name, shape in self.outputs.items()
        )

    def forward(self, state: State, t: Tensor) -> State:
        batch, time = self.batch_shape(state, t), self.time(t)
        features = {
            name: reader(state[name].reshape(*batch, sites))
            for (name, sites), reader in zip(self.sites.items(), self.readers, strict=True)
        }
        c = self.first(join([x.flatten(-2) for x in features.values()])).add_(self.first_time(time))
        for block in self.blocks:
            c = c + block(c)
        shared = {name: join([features[other] for other in others]) for name, others in self.sharing.items()}
        result: State = {}
        for (name, shape), predictor in zip(self.outputs.items(), self.predictors, strict=True):
            if name in features:
                result[name] = predictor(shared[name], c, time).reshape((*batch, *shape))
            else:
                result[name] = predictor([shared[term] for term in self.terms], c, time)
        return result


class _Reader(nn.Module):
    """Features of single sites: [..., sites] to [..., sites, features]."""

    def __init__(self, variable: Real | Categorical, frequencies: int) -> None:
        super().__init__()
        self.sites = math.prod(variable.latent_shape)
        self.tokens = SymbolEmbedding(variable.size + 1, TOKEN_FEATURES) if isinstance(variable, Categorical) else None
        self.frequencies = frequencies
        self.features = TOKEN_FEATURES if self.tokens is not None else 1 + 2 * frequencies

    def forward(self, x: Tensor) -> Tensor:
        return self.tokens(x) if self.tokens is not None else sinusoids(x, self.frequencies)


class _Sites(nn.Module):
    """Blocks of single sites, and their head: [..., sites, features] and c [..., width] to [..., sites, outputs]."""

    def __init__(
        self,
        features: int,
        variable: Real | Categorical,
        shape: tuple[int, ...],
        *,
        width: int,
        site_width: int,
        depth: int,
    ) -> None:
        super().__init__()
        axes = len(variable.latent_shape)
        self.sites, self.site_width = math.prod(shape[:axes]), site_width
        self.own = nn.Linear(features, site_width, bias=False)
        self.others = nn.Linear(width, self.sites * site_width)
        with torch.no_grad():  # initially, sites are distinct and coupled weakly
            self.others.weight.mul_(0.1)
            self.others.bias.normal_()
        self.times = nn.ModuleList(nn.Linear(TIME_FEATURES, 2 * site_width) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(site_width, 2 * site_width, bias=False) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * site_width, site_width) for _ in range(depth))
        self.head = Head(site_width, (math.prod(shape[axes:]),))

    def forward(self, features: Tensor, c: Tensor, time: Tensor) -> Tensor:
        norm = (self.site_width,)
        others = self.others(layer_norm(c, c.shape[-1:]))
        h = self.own(features) + others.unflatten(-1, (self.sites, self.site_width))
        for shift, up, down in zip(self.times, self.up, self.down, strict=True):
            h = h + down(silu(up(layer_norm(h, norm)).add_(shift(time)[..., None, :]), inplace=True))
        return self.head(layer_norm(h, norm))


class _Scalar(nn.Module):
    """The sum of one number from all sites together and one number from each site."""

    def __init__(self, whole: nn.Module, terms: Iterable[_Sites]) -> None:
        super().__init__()
        self.whole, self.terms = whole, nn.ModuleList(terms)

    def forward(self, features: Iterable[Tensor], c: Tensor, time: Tensor) -> Tensor:
        total = self.whole(c)
        for x, term in zip(features, self.terms, strict=True):
            total = total + term(x, c, time).sum((-1, -2))
        return total
