"""Draws of a sampler: states, with importance weights if the process has them.

With log-weights log w_i, normalised weights w̄_i = w_i/Σw and n draws:

    ess = 1/(n Σ w̄_i²)     log_z = log (1/n) Σ w_i     elbo = (1/n) Σ log w_i
    expect(f) = Σ w̄_i f(x_i),  stderr² = Σ w̄_i² (f(x_i) − expect(f))²      (w̄_i = 1/n without weights)

*Groups.* If states were resampled along the way (sequential Monte Carlo), draws of one population share ancestors, and
only populations are independent. The draws are then `groups` blocks of equal size, one after the other. Z is the mean
of the blocks' Z_b, and expect(f) is a ratio of sums over blocks, so errors come from the spread between blocks: with
W_b = Σ_{i∈b} w̄_i and R_b = Σ_{i∈b} w̄_i (f(x_i) − expect(f)), the linear part of the ratio in block b (delta method),

    log_z_stderr² = G/(G−1) Σ_b (W_b − 1/G)²     expect(f): stderr² = G/(G−1) Σ_b R_b²     G = groups.

`ess` is computed from the final weights and ignores common ancestors; the standard errors account for them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from egm.draws.diagnostics import eubo_problem, halves, pareto_k, pareto_k_limit, sigmas, weight_ess
from egm.draws.export import datatree, write
from egm.spaces import Space, State

if TYPE_CHECKING:
    from xarray import DataTree  # pyright: ignore[reportMissingImports]

MIN_ESS, MIN_DRAWS = 0.05, 100  # least ESS that is not a problem, as a fraction and as a number of draws
UNRECORDED = "the simulation that made them does not record the density of its steps"
UNSEEN = "a mode that the sampler never visits cannot be detected from weights"


class Draws:
    """n states of a space, one tensor [n, ...] for each variable.

    Attributes:
        state: the draws, in the coordinates that the energy sees.
        log_weights: float64 [n], −inf for weight zero, or None where the process has no weights.
        energies: energies of the states, float64 [n], if they were requested; otherwise None.
        groups: number of independent blocks of equal size; 1 if all draws are independent.
        energy_calls: number of states at which the energy was evaluated while drawing.
    """

    def __init__(
        self,
        space: Space,
        state: State,
        *,
        log_weights: Tensor | None = None,
        energies: Tensor | None = None,
        why_unweighted: str | None = None,
        eubo: Callable[[], tuple[float, float]] | None = None,
        groups: int = 1,
        energy_calls: int = 0,
    ) -> None:
        """Stores states and their weights.

        Args:
            space: the space of the states.
            state: one tensor [n, ...] for each variable.
            log_weights: [n], finite, or −inf where the density is zero.
            energies: [n], see the attributes.
            why_unweighted: the reason for missing weights, for error messages.
            eubo: function that returns the mean log-weight of paths that end in exact samples of the target, and its
                standard error; None if the target has no exact sampler. Called at most once, on first use.
            groups: see the attributes.
            energy_calls: see the attributes.
        """
        batch = space.batch_shape(state)
        if len(batch) != 1 or batch[0] < 1:
            raise ValueError(f"draws need one leading axis of at least one draw, got the batch shape {tuple(batch)}")
        if groups < 1 or batch[0] % groups:
            raise ValueError(f"groups must be at least 1 and divide the {batch[0]} draws, got {groups}")
        if log_weights is not None:
            if tuple(log_weights.shape) != tuple(batch):
                raise ValueError(f"log_weights need the shape {tuple(batch)}, got {tuple(log_weights.shape)}")
            illegal = log_weights.isnan() | (log_weights == math.inf)
            if illegal.any():
                raise ValueError(
                    f"log_weights must be finite, or −inf for weight zero; {int(illegal.sum())} of {batch[0]} are NaN"
                    f" or +inf, first of all draw {int(illegal.nonzero()[0])}: look for an energy of NaN or −inf there"
                )
            log_weights = log_weights.detach().double()
        if energies is not None and tuple(energies.shape) != tuple(batch):
            raise ValueError(f"energies need the shape {tuple(batch)}, got {tuple(energies.shape)}")
        self.space, self.state, self.log_weights = space, state, log_weights
        self.energies = None if energies is None else energies.detach().double()
        self.groups, self.energy_calls = groups, energy_calls
        self._why_unweighted, self._find_eubo = why_unweighted or UNRECORDED, eubo

    def __getitem__(self, name: str) -> Tensor:
        return self.state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(next(iter(self.state.values())))

    def __repr__(self) -> str:
        weighted = "" if self.log_weights is None else f", ess={self.ess if self._possible else 0.0:.3f}"
        return f"Draws(n={len(self)}, {self.space!r}{weighted})"

    @property
    def ess(self) -> float:
        """Effective sample size as a fraction of the draws, in (0, 1]."""
        return float(weight_ess(self._weights("ess")))

    @property
    def log_z(self) -> float:
        """Estimate of log ∫ exp(−E)."""
        return float(torch.logsumexp(self._weights("log_z"), 0)) - math.log(len(self))

    @property
    def log_z_stderr(self) -> float:
        """Standard error of `log_z` (first order in the spread of the weights)."""
        shares = self._parts(self._normalised("log_z_stderr"))
        return float(shares.std()) * math.sqrt(len(shares)) if len(shares) > 1 else math.inf

    @property
    def elbo(self) -> float:
        """Mean log-weight, at most log Z in expectation."""
        return float(self._weights("elbo").mean())

    @property
    def eubo(self) -> float | None:
        """Mean log-weight of paths that end in exact samples, at least log Z in expectation; None without them."""
        return None if self._eubo is None else self._eubo[0]

    @property
    def eubo_stderr(self) -> float | None:
        """Standard error of `eubo`."""
        return None if self._eubo is None else self._eubo[1]

    @property
    def pareto_k(self) -> float:
        """Shape k̂ of the tail of the weights (`egm.draws.diagnostics.pareto_k`); NaN if it cannot be estimated."""
        return pareto_k(self._weights("pareto_k"))

    @property
    def halves(self) -> tuple[float, float]:
        """Estimates of log Z from the first and from the second half; NaN with fewer than four independent parts."""
        return halves(self._weights("halves"), groups=self.groups)[:2]

    def expect(self, function: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the mean of function(**state) [n, ...] under the (weighted) draws, and its standard error."""
        try:
            inspect.signature(function).bind(**self.state)
        except TypeError as error:
            raise TypeError(
                f"the function must take the variables {list(self.state)} by their names: {error}"
            ) from None
        except ValueError:
            pass  # a function in C, which has no signature
        values = function(**self.state)
        if not isinstance(values, Tensor) or values.ndim == 0 or len(values) != len(self):
            got = f"the shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
            raise ValueError(
                f"the function must return a tensor with one value for each of {len(self)} draws, got {got}"
            )
        values = values.double()
        weights = self._even() if self.log_weights is None else self._normalised("expect")
        weights = weights.to(values.device).reshape((-1, *(1,) * (values.ndim - 1)))
        mean = (weights * values).sum(0)
        squares = self._parts(weights * (values - mean)).square().sum(0)
        return mean, (squares * (self.groups / (self.groups - 1) if self.groups > 1 else 1.0)).sqrt()

    def resample(self, n: int, seed: int = 0) -> State:
        """Draws n unweighted states with replacement, in proportion to the weights (uniformly if there are none)."""
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        weights = self._even() if self.log_weights is None else self._normalised("resample")
        generator = torch.Generator().manual_seed(seed)
        index = torch.multinomial(weights.cpu(), n, replacement=True, generator=generator)
        return {name: x[index.to(x.device)] for name, x in self.state.items()}

    def problems(self) -> list[str]:
        """Returns the problems found in these draws, with numbers; an empty list does not prove that there are none."""
        if self.log_weights is None:
            return [f"there are no weights: {self._why_unweighted}"]
        if not self._possible:
            return ["no draw has positive density"]
        n, ess, k, found = len(self), self.ess, self.pareto_k, []
        if ess < MIN_ESS or ess * n < MIN_DRAWS:
            wanted = f"at least {MIN_ESS:.2f} and {MIN_DRAWS} are wanted"
            found.append(f"ESS {ess:.3g} is worth {ess * n:.0f} independent draws ({wanted})")
        if k > pareto_k_limit(n):
            found.append(f"Pareto k̂ {k:.2f} exceeds {pareto_k_limit(n):.2f}: a few large weights dominate")
        first, second, apart = halves(self.log_weights, groups=self.groups)
        independent = self.groups if self.groups > 1 else n
        if independent < 4:
            found.append(f"independent draws or groups: {independent}, at least 4 are wanted for an error bar")
        elif apart > sigmas(independent - 2):
            found.append(f"halves give log Z {first:.4f} and {second:.4f}, {apart:.1f} standard errors apart")
        if self._eubo is not None:
            log_z = self.log_z, self.log_z_stderr
            limit = sigmas(max(independent - 1, 1))
            against = eubo_problem(self._eubo, log_z, predicted=self._predicted_eubo(), ess=ess, limit=limit)
            found += [against] if against else []
        return found

    def summary(self) -> str:
        """Returns a text of means and standard deviations, weight diagnostics, and "no problem detected" or why not."""
        lines = [f"{len(self)} draws of {self.space!r}", f"{'variable':<20}{'mean':>12}{'sd':>12}"]
        weights = self._normalised("summary") if self._possible else self._even()
        for name, x in self.state.items():
            flat = x.reshape(len(self), -1).double()
            mean = weights.to(flat.device) @ flat
            spread = (weights.to(flat.device) @ (flat - mean).square()).sqrt()
            shown = range(min(flat.shape[1], 8))
            labels = [f"{name}[{i}]" if flat.shape[1] > 1 else name for i in shown]
            lines += [f"{label:<20}{mean[i]:12.4f}{spread[i]:12.4f}" for i, label in zip(shown, labels, strict=True)]
            if flat.shape[1] > len(shown):
                lines.append(f"… and {flat.shape[1] - len(shown)} more entries of {name}")
        problems = self.problems()
        lines += self._quality() if self._possible else []
        return "\n".join([*lines, f"unreliable, because {'; '.join(problems)}" if problems else "no problem detected"])

    def to_datatree(self) -> DataTree:
        """Returns an `xarray.DataTree` for ArviZ with the groups "posterior" and "sample_stats" (`egm.draws.export`).

        The draws are not resampled: most of ArviZ ignores sample_stats["log_weight"], so export `resample`d states
        (`Draws(space, draws.resample(n))`) if weights are uneven.
        """
        return datatree(self)

    def write(self, file: str | Path) -> None:
        """Writes the draws to a NetCDF (.nc), NumPy (.npz) or text (.csv) file, see `egm.draws.export`."""
        write(self, file)

    def _quality(self) -> list[str]:
        """Returns the lines of `summary` about the weights."""
        n, k = len(self), self.pareto_k
        tail = "not estimated (too few large weights)"
        if not math.isnan(k):
            tail = f"{k:.2f} (at most {pareto_k_limit(n):.2f} is wanted)"
        elbo, stderr = f"ELBO {self.elbo:.4f}", self.eubo_stderr
        if self.eubo is not None:
            elbo += f", EUBO {self.eubo:.4f} ± {stderr:.4f}"
        first, second = self.halves
        lines = [
            f"n {n}, ESS {self.ess:.3f}, Pareto k̂ {tail}",
            f"log Z {self.log_z:.4f} ± {self.log_z_stderr:.4f} (halves {first:.4f}, {second:.4f}), {elbo}",
        ]
        if self._eubo is None or self.groups > 1:
            lines.append(UNSEEN)
        return lines

    @cached_property
    def _eubo(self) -> tuple[float, float] | None:
        if self._find_eubo is None:
            return None
        value, stderr = self._find_eubo()
        if math.isnan(value) or (math.isfinite(value) and not stderr >= 0):
            raise ValueError(f"eubo must return a number and its standard error, got {value} and {stderr}")
        return float(value), float(stderr)

    def _predicted_eubo(self) -> tuple[float, float] | None:
        """Returns Σ w̄ log w and its standard error; None for resampled draws, whose weights are not path weights."""
        if self.groups > 1:
            return None
        log_w = self._weights("eubo")
        value, stderr = self.expect(lambda **_: torch.where(log_w == -math.inf, 0.0, log_w))  # 0·log 0 = 0
        return float(value), float(stderr)

    @cached_property
    def _possible(self) -> bool:
        """Whether there are weights that are not all zero."""
        return self.log_weights is not None and bool((self.log_weights > -math.inf).any())

    def _parts(self, terms: Tensor) -> Tensor:
        """Returns the sums of terms [n, ...] over each independent part of the draws: a draw, or a group."""
        return terms if self.groups == 1 else terms.unflatten(0, (self.groups, -1)).sum(1)

    def _even(self) -> Tensor:
        return torch.full((len(self),), 1 / len(self), dtype=torch.float64)

    def _weights(self, what: str) -> Tensor:
        if self.log_weights is None:
            raise ValueError(f"{what} needs importance weights, and these draws have none: {self._why_unweighted}")
        if not self._possible:
            raise ValueError(f"{what} is undefined: no draw has positive density, the energy is +inf on all of them")
        return self.log_weights

    def _normalised(self, what: str) -> Tensor:
        return torch.softmax(self._weights(what), 0)
