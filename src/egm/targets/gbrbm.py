"""Gaussian–Bernoulli restricted Boltzmann machine, v real and h binary.

    E(v, h) = ½‖v − a‖²/σ² − b·h − vᵀWh/σ²

Completing the square in v,

    E(v, h) = ½‖v − a − Wh‖²/σ² − b·h − (a·Wh + ½‖Wh‖²)/σ²,

so v | h ~ N(a + Wh, σ²I), and with d visible units

    p(h) = exp(b·h + (a·Wh + ½‖Wh‖²)/σ²) (2πσ²)^{d/2} / Z,

a sum over 2^hidden states: exact log Z, exact samples, and the exact mass of every mode.
"""

from __future__ import annotations

import math
from functools import cached_property
from types import SimpleNamespace
from typing import final

import torch
from torch import Tensor

from egm.spaces import Categorical, Real, Space, State
from egm.targets.base import Target
from egm.targets.modes import Modes
from egm.targets.support import Constants, describe, require_positive
from egm.util.cached_tensors import Nested

MAX_HIDDEN = 20
NEGLIGIBLE_MASS = 1e-3


@final
class GBRBM(Target):
    """Variables v: Real(visible) and h: Categorical(2, hidden).

    Args:
        W: couplings, [visible, hidden].
        b: hidden fields, a number or [hidden].
        a: visible offsets, a number or [visible].
        sigma: standard deviation of v given h.

    The defaults have six modes, at (0,0), (±5,0), (0,5) and (±5,5). `loc` and `scale` of v are its mean and its largest
    standard deviation when the hidden units are fair coins: a + W·½, and √(σ² + ¼ max_i Σ_j W_ij²).

    Up to 20 hidden units are summed exactly; with more, `log_z` and `reference_kind` are None.

    >>> GBRBM()
    GBRBM()
    >>> round(GBRBM().log_z or 0, 5), len(GBRBM().modes.masses)
    (4.26997, 6)
    """

    def __init__(
        self,
        *,
        W: object = ((5.0, 0.0, -5.0), (0.0, 5.0, 0.0)),
        b: object = -12.0,
        a: object = 0.0,
        sigma: float = 1.0,
    ) -> None:
        require_positive(sigma=sigma)
        couplings = _finite("W", W)
        if couplings.ndim != 2 or 0 in couplings.shape:
            raise ValueError(f"W must be a matrix [visible, hidden], got shape {tuple(couplings.shape)}")
        self.visible, self.hidden = couplings.shape
        self.sigma = float(sigma)
        self._constants = Constants(W=couplings, b=_vector("b", b, self.hidden), a=_vector("a", a, self.visible))
        exact = self._exact_constants
        loc = exact.a + exact.W.sum(-1) / 2
        scale = math.sqrt(sigma**2 + float(couplings.square().sum(-1).max()) / 4)
        space = Space(v=Real(self.visible, loc=loc, scale=scale), h=Categorical(2, self.hidden))
        name = describe(self, W=_tuples(couplings), b=_tuples(_finite("b", b)), a=_tuples(_finite("a", a)), sigma=sigma)
        super().__init__(space, self._joint_energy, name=name)
        self.reference_kind = "exact" if self.hidden <= MAX_HIDDEN else None

    @staticmethod
    def as_printed() -> GBRBM:
        """Returns the model as printed in the paper, E = ½‖v‖² − b·h − ½vᵀW'h, W' = [[10,0,10],[0,10,0]] and b = −5.

        These parameters put 99.9 % of the mass on one mode, at (10, 5).
        """
        return GBRBM(W=((5.0, 0.0, 5.0), (0.0, 5.0, 0.0)), b=-5.0)

    def _joint_energy(self, v: Tensor, h: Tensor) -> Tensor:
        c = self._constants.like(v)
        hidden = h.to(v.dtype)
        quadratic = 0.5 * (v - c.a).square().sum(-1) - (v * (hidden @ c.W.T)).sum(-1)
        return quadratic / self.sigma**2 - (hidden * c.b).sum(-1)

    # ------------------------------------------------------------------ exact answers

    @property
    def _exact_constants(self) -> SimpleNamespace:
        return self._constants.like(torch.empty(0, dtype=torch.float64))

    @cached_property
    def _hidden_states(self) -> tuple[Tensor, Tensor, Tensor]:
        """Every h [2^hidden, hidden], its mean of v [2^hidden, visible] and its log ∫ exp(−E) dv [2^hidden]."""
        if self.hidden > MAX_HIDDEN:
            raise ValueError(
                f"{self.hidden} hidden units have 2^{self.hidden} states, too many to sum; exact answers need at most"
                f" {MAX_HIDDEN}"
            )
        c = self._exact_constants
        h = torch.arange(2**self.hidden)[:, None] >> torch.arange(self.hidden) & 1
        shift = h.double() @ c.W.T
        log_mass = h.double() @ c.b + (shift @ c.a + 0.5 * shift.square().sum(-1)) / self.sigma**2
        return h, c.a + shift, log_mass + 0.5 * self.visible * math.log(2 * math.pi * self.sigma**2)

    @cached_property
    def modes(self) -> Modes:
        """The distinct means of v given h with their exact masses, without masses below 1e-3."""
        _, means, log_mass = self._hidden_states
        centers, index = torch.unique(means.round(decimals=9), dim=0, return_inverse=True)
        masses = torch.zeros(len(centers), dtype=torch.float64).index_add_(0, index, log_mass.softmax(0))
        kept = masses >= NEGLIGIBLE_MASS
        return Modes(centers[kept], masses[kept], radius=4 * self.sigma)

    def _log_z(self) -> float | None:
        return float(self._hidden_states[2].logsumexp(0)) if self.reference_kind else None

    def _exact_sample(self, n: int, seed: int) -> State:
        generator = torch.Generator().manual_seed(seed)
        h, means, log_mass = self._hidden_states
        chosen = torch.multinomial(log_mass.softmax(0), n, replacement=True, generator=generator)
        noise = torch.randn(n, self.visible, generator=generator, dtype=torch.float64)
        v = means[chosen] + self.sigma * noise
        return {"v": v.to(torch.get_default_dtype()), "h": h[chosen]}

    def observables(self, **state: Tensor) -> dict[str, Tensor]:
        """Returns v [..., visible], h [..., hidden] and, if exact, `mode`: index into `modes` [...], −1 for none."""
        shown = super().observables(**state)
        if self.reference_kind:
            shown["mode"] = self.modes.assign(state["v"])
        return shown


def _finite(name: str, value: object) -> Tensor:
    array = torch.as_tensor(value, dtype=torch.float64).detach().cpu().clone()
    if not bool(torch.isfinite(array).all()):
        raise ValueError(f"{name} must be finite, got {value}")
    return array


def _vector(name: str, value: object, size: int) -> Tensor:
    array = _finite(name, value)
    if array.ndim > 1 or (array.ndim == 1 and len(array) != size):
        raise ValueError(f"{name} must be a number or have shape [{size}] to match W, got shape {tuple(array.shape)}")
    return array.expand(size).clone()


def _tuples(array: Tensor) -> Nested:
    return float(array) if array.ndim == 0 else tuple(_tuples(row) for row in array)
