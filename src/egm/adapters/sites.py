"""Turns the latent sites of a probabilistic program into variables of a space.

| site | variable | what the model sees |
|---|---|---|
| real | `Real` | x |
| positive, an interval, a simplex | `Real` with that constraint | x |
| any other continuous support | `Real`, unconstrained | T(x), T the support's bijection; log |∂T/∂x| is in the energy |
| enumerable | `Categorical` | the k-th value of its support |

loc and scale of a `Real` are the median and the spread of draws of the prior, in unconstrained coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from egm.spaces import Real, Space, State, Variable
from egm.spaces.declarations import Constraint
from egm.targets.base import Target

PRIOR_DRAWS = 64


@dataclass(frozen=True)
class Site:
    """One latent site.

    Attributes:
        variable: its variable in the space.
        support: the values of a discrete site, [n], in the framework's arrays; None for continuous ones.
        transform: the bijection T if no constraint of the variable expresses the support; otherwise None.
    """

    variable: Variable
    support: Any = None
    transform: Any = None


class ModelTarget(Target):
    """The posterior of a probabilistic program, given its arguments and observations.

    `values(**state)` returns the sites as the model sees them.
    """

    def __init__(
        self, space: Space, energy: Callable[..., Tensor], values: Callable[[State], State], name: str
    ) -> None:
        super().__init__(space, energy, name=name)
        self._values = values

    def values(self, **state: Tensor) -> State:
        """Returns values of the sites [..., *shape of the site], from states of the space."""
        return self._values(state)


def real_variable(
    shape: tuple[int, ...], constraint: Constraint, prior: NDArray[Any] | None, loc: float | None, scale: float | None
) -> Real:
    """Returns a variable with loc and scale, unless given, of prior draws in unconstrained coordinates."""
    found = (0.0, 1.0)
    if prior is not None and np.isfinite(prior).all() and prior.size:
        low, middle, high = np.quantile(prior, [0.16, 0.5, 0.84])
        found = (float(middle), float(high - low) / 2 or 1.0)
    return Real(
        shape, loc=found[0] if loc is None else loc, scale=found[1] if scale is None else scale, constraint=constraint
    )


def check_names(sites: Mapping[str, Site], *given: Mapping[str, float] | None, model: str) -> None:
    """Raises if there is no latent site, or if loc or scale name anything but continuous sites."""
    if not sites:
        raise ValueError(f"{model} has no latent site: every sample statement is observed")
    real = [name for name, site in sites.items() if isinstance(site.variable, Real)]
    for options in given:
        unknown = set(options or {}) - set(real)
        if unknown:
            raise ValueError(f"{sorted(unknown)} are no continuous sites of {model}; its continuous sites are {real}")


def check_support(name: str, supports: Sequence[Any]) -> None:
    """Raises if prior draws differ in the bounds of a site: a space cannot depend on the state."""
    first, *others = (_bounds(_base(support)) for support in supports)
    if any(not np.array_equal(a, b) for other in others for a, b in zip(first, other, strict=True)):
        raise ValueError(
            f"the bounds of the site '{name}' depend on other sites; sample it between fixed bounds and compute the"
            " value from that, for example u ~ Uniform(0, 1) and a * u instead of Uniform(0, a)"
        )


def _base(support: Any) -> Any:
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def _bounds(base: Any) -> list[NDArray[Any]]:
    return [np.asarray(getattr(base, end)) for end in ("lower_bound", "upper_bound") if hasattr(base, end)]


def constraint_of(support: Any, known: Any) -> tuple[Constraint, bool]:
    """Returns the constraint of `Real` that expresses a support (or None), and whether the support is the real line.

    Args:
        support: support of a distribution of Pyro or NumPyro, which use the same names for bounds.
        known: the module that contains `real` and `simplex`.
    """
    base = _base(support)
    if base is known.simplex:
        return "simplex", False
    ends = [float(bound.flat[0]) for bound in _bounds(base) if (bound == bound.flat[0]).all()]
    if len(ends) == 2:
        return (ends[0], ends[1]), False
    if ends == [0.0] and hasattr(base, "lower_bound"):
        return "positive", False
    return None, base is known.real
