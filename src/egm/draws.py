"""Draws of a sampler: states, and importance weights where the process has them.

With log-weights log w_i, normalised weights w̄_i = w_i/Σw and n draws:

    ess = 1/(n Σ w̄_i²)     log_z = log (1/n) Σ w_i     elbo = (1/n) Σ log w_i
    expect(f) = Σ w̄_i f(x_i),  stderr² = Σ w̄_i² (f(x_i) − expect(f))²      (w̄_i = 1/n without weights)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from egm.spaces import Space, State


class Draws:
    """n states of a space, one tensor [n, ...] for each variable.

    Attributes:
        state: the draws, in the coordinates that the energy sees.
        log_weights: float64 [n], or None where the process has no weights.
        energy_calls: states handed to the energy while drawing.
    """

    def __init__(self, space: Space, state: State, *, log_weights: Tensor | None = None, energy_calls: int = 0) -> None:
        batch = space.batch_shape(state)
        if len(batch) != 1 or batch[0] < 1:
            raise ValueError(f"draws need one leading axis of at least one draw, got the batch shape {tuple(batch)}")
        if log_weights is not None and tuple(log_weights.shape) != tuple(batch):
            raise ValueError(f"log_weights need the shape {tuple(batch)}, got {tuple(log_weights.shape)}")
        self.space, self.state, self.energy_calls = space, state, energy_calls
        self.log_weights = None if log_weights is None else log_weights.double()

    def __getitem__(self, name: str) -> Tensor:
        return self.state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(next(iter(self.state.values())))

    def __repr__(self) -> str:
        weighted = "" if self.log_weights is None else f", ess={self.ess:.3f}"
        return f"Draws(n={len(self)}, {self.space!r}{weighted})"

    @property
    def ess(self) -> float:
        """Effective sample size as a fraction of the draws, in (0, 1]."""
        return 1 / (len(self) * float(self._normalised("ess").square().sum()))

    @property
    def log_z(self) -> float:
        """Estimate of log ∫ exp(−E)."""
        return float(torch.logsumexp(self._weights("log_z"), 0)) - math.log(len(self))

    @property
    def log_z_stderr(self) -> float:
        """Standard error of `log_z` (first order in the spread of the weights)."""
        weights = self._normalised("log_z_stderr") * len(self)
        return float(weights.std() / math.sqrt(len(self))) if len(self) > 1 else math.inf

    @property
    def elbo(self) -> float:
        """Mean log-weight, at most log Z in expectation."""
        return float(self._weights("elbo").mean())

    def expect(self, function: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        """Mean of function(**state) [n, ...] under the (weighted) draws, and its standard error."""
        values = function(**self.state).double()
        if values.ndim == 0 or len(values) != len(self):
            raise ValueError(f"the function must return one value for each of {len(self)} draws, got {values.shape}")
        weights = self._even() if self.log_weights is None else self._normalised("expect")
        weights = weights.to(values.device).reshape((-1, *(1,) * (values.ndim - 1)))
        mean = (weights * values).sum(0)
        return mean, (weights * (values - mean)).square().sum(0).sqrt()

    def resample(self, n: int, seed: int = 0) -> State:
        """n unweighted states, drawn with replacement in proportion to the weights (equal where there are none)."""
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        weights = self._even() if self.log_weights is None else self._normalised("resample")
        generator = torch.Generator().manual_seed(seed)
        index = torch.multinomial(weights.cpu(), n, replacement=True, generator=generator)
        return {name: x[index.to(x.device)] for name, x in self.state.items()}

    def summary(self) -> str:
        """A table of the variables' means and spreads, and what is known about the draws' quality."""
        lines = [f"{len(self)} draws of {self.space!r}", f"{'variable':<20}{'mean':>12}{'sd':>12}"]
        weights = self._even() if self.log_weights is None else self._normalised("summary")
        for name, x in self.state.items():
            flat = x.reshape(len(self), -1).double()
            mean = weights.to(flat.device) @ flat
            spread = (weights.to(flat.device) @ (flat - mean).square()).sqrt()
            shown = range(min(flat.shape[1], 8))
            labels = [f"{name}[{i}]" if flat.shape[1] > 1 else name for i in shown]
            lines += [f"{label:<20}{mean[i]:12.4f}{spread[i]:12.4f}" for i, label in zip(shown, labels, strict=True)]
            if flat.shape[1] > len(shown):
                lines.append(f"… and {flat.shape[1] - len(shown)} more entries of {name}")
        if self.log_weights is None:
            lines.append("No importance weights: how far these draws are from the target cannot be told from them.")
        else:
            lines.append(f"ESS {self.ess:.3f}, log Z {self.log_z:.4f} ± {self.log_z_stderr:.4f}, ELBO {self.elbo:.4f}")
        return "\n".join(lines)

    def _even(self) -> Tensor:
        return torch.full((len(self),), 1 / len(self), dtype=torch.float64)

    def _weights(self, what: str) -> Tensor:
        if self.log_weights is None:
            raise ValueError(
                f"{what} needs importance weights, and these draws have none: the simulation that made them does not"
                " record the density of its steps"
            )
        return self.log_weights

    def _normalised(self, what: str) -> Tensor:
        return torch.softmax(self._weights(what), 0)
