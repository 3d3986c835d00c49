"""The product path of a space: variables are noised independently at one common time, so log-densities add."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, cast, get_args

import torch
from torch import Tensor

from egm.paths.base import Path, Proposal, Time
from egm.paths.discrete import DiscretePath, Masked
from egm.paths.gaussian import CondOT, GaussianPath
from egm.spaces import Categorical, Real, Space, State

AnyPath: TypeAlias = Path[Real] | Path[Categorical]


class ProductPath:
    """The product of one path for each variable of a space, by default CondOT (Real) and Masked (Categorical).

    States are latent states (`Space.to_latent`).

    Attributes:
        space: the variables.
        paths: the path of every variable.
        gaussian: the paths of real variables.
        revealing: the paths that reveal sites one by one.

    >>> import egm
    >>> space = egm.Space(v=egm.Real(2), h=egm.Categorical(2, shape=3))
    >>> path = ProductPath(space)
    >>> latent = path.prior_sample((4,), generator=torch.Generator().manual_seed(0))
    >>> latent["h"].tolist()[0], path.prior_log_prob(latent).shape
    ([2, 2, 2], torch.Size([4]))
    """

    def __init__(self, space: Space, paths: Mapping[str, AnyPath] | None = None) -> None:
        paths = dict(paths or {})
        for name, path in paths.items():
            if name not in space.variables:
                raise ValueError(f"paths names the variable '{name}', but the space has {list(space)}")
            if path.variable != space[name]:
                raise ValueError(
                    f"the path of '{name}' was made for {path.variable!r}, but the space has {space[name]!r}"
                )
        self.space = space
        self.paths: dict[str, AnyPath] = {
            name: paths.get(name) or (CondOT(variable) if isinstance(variable, Real) else Masked(variable))
            for name, variable in space.variables.items()
        }
        self.gaussian = {name: path for name, path in self.paths.items() if isinstance(path, GaussianPath)}
        self.revealing = {name: cast(DiscretePath, path) for name, path in self.paths.items() if path.reveals}

    def __getitem__(self, name: str) -> AnyPath:
        return self.paths[name]

    @property
    def reveals(self) -> bool:
        """Whether every variable's path reveals its sites one by one."""
        return len(self.revealing) == len(self.paths)

    def sample(self, x_r: State, t: Time, r: Time = 1.0, *, generator: torch.Generator | None = None) -> State:
        """Draws x_t ~ p_{t|r}(· | x_r)."""
        t, r = self._times(x_r, t, r)
        return {name: path.sample(x_r[name], t, r, generator=generator) for name, path in self.paths.items()}

    def log_prob(self, x_t: State, x_r: State, t: Time, r: Time = 1.0) -> Tensor:
        """log p_{t|r}(x_t | x_r), shape [...]."""
        t, r = self._times(x_t, t, r)
        return _add(path.log_prob(x_t[name], x_r[name], t, r) for name, path in self.paths.items())

    def proposer(
        self, x_t: State, t: Time, r: Time = 1.0, *, law: Proposal = "flat"
    ) -> Callable[[int, torch.Generator | None], State]:
        """Returns a function draw(count, generator) of `count` proposals x_r, stacked along the first axis."""
        if law not in get_args(Proposal):
            raise ValueError(f"law must be one of {get_args(Proposal)}, got {law!r}")
        t, r = self._times(x_t, t, r)
        draws = {name: path.proposer(x_t[name], t, r, law=law) for name, path in self.paths.items()}
        return lambda count, generator: {name: draw(count, generator) for name, draw in draws.items()}

    def log_normaliser(self, x_t: State, t: Time, r: Time = 1.0) -> Tensor:
        """log Z_{r|t}(x_t), shape [...]."""
        t, r = self._times(x_t, t, r)
        return _add(path.log_normaliser(x_t[name], t, r) for name, path in self.paths.items())

    def _times(self, state: State, t: Time, r: Time) -> tuple[Time, Time]:
        """Returns numbers as tensors of the real variables' dtype, so that symbols get the precision of reals."""
        reals = [state[name] for name in self.space.real]
        if not reals:
            return t, r
        t, r = (time if isinstance(time, Tensor) else reals[0].new_full((), time) for time in (t, r))
        return t, r

    def prior_sample(
        self,
        batch: Sequence[int],
        t: Time = 0.0,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> State:
        """Draws the initial state of a simulation that begins at t."""
        return {
            name: path.prior_sample(batch, t, generator=generator, dtype=dtype, device=device)
            for name, path in self.paths.items()
        }

    def prior_log_prob(self, x_t: State, t: Time = 0.0) -> Tensor:
        """Log-density of `prior_sample`, shape [...]."""
        t, _ = self._times(x_t, t, 1.0)
        return _add(path.prior_log_prob(x_t[name], t) for name, path in self.paths.items())


def _add(terms: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, terms)
