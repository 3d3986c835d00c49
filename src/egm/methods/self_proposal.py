"""EGM-SP: trains the sampler on its own weighted draws.

Each round draws end points x_1 with their exact path weights (`egm.simulation.path_weights`), keeps the last few
rounds, and trains on x_1 resampled in proportion to its weight, by conditional generator matching:

    x_t ~ p_{t|1}(· | x_1),   loss = Σ_reals ‖o − o_θ‖²/d + Σ_symbols CE(x_1^i, D_θ^i) over the sites not yet revealed,

with o the rescaled denoiser (`DenoisingProcess.loss`) and the cross-entropy of masked sites divided by 1 − κ_t. For
κ_t = t its mean is then the path's −log-likelihood, except that 1 − κ_t is at least 1/sites: this reduces the variance
and some weight of the last reveals and keeps the minimiser. The target is approached through π_b ∝ p_ref^{1−b}
exp(−bE), p_ref the law of the untrained sampler: every round moves b up to the largest value at which the new draws
keep the effective sample size `ess_target`. From too few effective draws a network learns those draws and not their
law; so if the whole buffer has less than half of `ess_target`, its weights are flattened to w^γ with the largest γ that
reaches this half. At γ = 0 a sampler would learn from its unweighted draws, and not change.

No exact draws, exact log Z or metrics are used: b and the end of training follow from the weights alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from egm.draws.diagnostics import weight_ess
from egm.methods.registry import add_method, add_options
from egm.methods.trained import Trained
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.simulation.course import Course
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.simulate import Simulation
from egm.spaces import State
from egm.targets.guard import EnergyGuard
from egm.train.buffer import ReplayBuffer
from egm.train.method import Method, stratified_times

GRID, HALVINGS = 64, 30  # intervals of the search for b or γ, and halvings of one of them
FLATTEST = 1e-6  # smallest γ
LEAST = 0.5  # smallest share of the wanted effective sample size
IMPROVEMENT = 1e-3  # smallest increase of the effective sample size that counts as an improvement


@dataclass(frozen=True)
class SPOptions:
    """Options of EGM-SP.

    Attributes:
        ess_target: effective sample size (a fraction) that a round's weights keep while b moves towards 1.
        patience: number n of rounds; the last part of training begins when b = 1 and the mean ESS over n rounds is not
            above the mean over the n rounds before; 0 for never.
    """

    ess_target: float = 0.4
    patience: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.ess_target < 1:
            raise ValueError(f"ess_target is a fraction of the draws and lies in (0, 1), got {self.ess_target}")
        if self.patience < 0:
            raise ValueError(f"patience counts rounds and must be at least 0, got {self.patience}")


class SelfProposal(Method):
    """Losses and rounds of EGM-SP; for the arguments see `Method`."""

    weighted = True
    weight_decay = 0.0

    def __init__(
        self,
        energy: EnergyGuard,
        path: ProductPath,
        processes: Mapping[str, Process[Any]],
        network: nn.Module,
        *,
        error: DenoiserError,
        options: SPOptions,
    ) -> None:
        if (reason := Course().why_unweighted(processes)) is not None:
            raise ValueError(
                f"egm-sp trains on weighted draws, and there are no path weights: {reason}, or use method='egm'"
            )
        super().__init__(energy, path, processes, network, error)
        self.options = options
        device = next(network.parameters()).device
        self.b = torch.zeros((), dtype=torch.float64, device=device)
        self.ess = torch.ones((), dtype=torch.float64, device=device)  # of the last round, at its b
        self.power = torch.ones((), dtype=torch.float64, device=device)  # γ
        self._history: list[Tensor] = []  # of (b, ess)
        self._cumulative = torch.zeros(0)  # of the weights in the buffer

    # ------------------------------------------------------------------ a round

    @torch.no_grad()
    def refresh(self, buffer: ReplayBuffer, drawn: Simulation) -> None:
        """Puts new weighted end points into the buffer, moves b, and recomputes all weights in the buffer."""
        log_ratio = drawn.log_ratio
        if drawn.invertible is not None and log_ratio is not None:  # a map that folds has no weight
            log_ratio = log_ratio.masked_fill(~drawn.invertible, -torch.inf)
        energy, log_ref = self.energy(drawn.state), self.path.prior_log_prob(drawn.state, 1.0)
        terms = torch.stack([log_ratio, log_ref.double(), energy.double()], 1)  # type: ignore[list-item]
        self.b.copy_(_largest(lambda b: log_weights(terms, b), self.b, self.options.ess_target))
        self.ess.copy_(weight_ess(log_weights(terms, self.b)))
        self._history = [*self._history, torch.stack([self.b, self.ess])][-2 * max(1, self.options.patience) :]
        buffer.add({**drawn.state, ".terms": terms})
        self.weigh(buffer)

    @torch.no_grad()
    def weigh(self, buffer: ReplayBuffer) -> None:
        """Computes the weights of the buffer at the present b; rounds count alike, as each estimates the same Z_b."""
        log_w = log_weights(buffer.held[".terms"], self.b)
        flat = torch.full_like(self.b, FLATTEST)
        self.power.copy_(_largest(lambda power: power * log_w, flat, LEAST * self.options.ess_target))
        cumulative = torch.softmax(self.power * log_w, 0).cumsum(0)
        if len(self._cumulative) != len(cumulative):
            self._cumulative = cumulative
        else:
            self._cumulative.copy_(cumulative)  # the CUDA graph of a step reads it there

    def end_points(self, buffer: ReplayBuffer, n: int, generator: torch.Generator) -> State:
        """Draws n states of the buffer in proportion to their weights, by stratified resampling, in random order."""
        device = self._cumulative.device
        # in (0, 1]: u = 0 would take the first state even where its weight is zero
        u = (torch.arange(1, n + 1, device=device) - torch.rand(n, generator=generator, device=device)) / n
        index = torch.searchsorted(self._cumulative, u.double() * self._cumulative[-1])
        index = index.clamp(max=len(self._cumulative) - 1)
        index = index[torch.rand(n, generator=generator, device=device).argsort()]
        return {name: x[index] for name, x in buffer.held.items() if name in self.path.paths}

    def finished(self) -> bool:
        """Returns whether the effective sample size no longer improves; called once per round, waits for the device."""
        rounds = self.options.patience
        if not rounds or len(self._history) < 2 * rounds:
            return False
        b, ess = torch.stack(self._history).T
        return bool((b[0] == 1) & (ess[rounds:].mean() < ess[:rounds].mean() + IMPROVEMENT))

    # ------------------------------------------------------------------ a step

    def losses(self, x_1: State, *, first: bool, generator: torch.Generator) -> dict[str, Tensor]:
        """See `Method.losses`."""
        t = stratified_times(len(next(iter(x_1.values()))), generator)
        x_t = self.path.sample(x_1, t, generator=generator)
        output = self.network(x_t, t)
        total = torch.zeros((), device=t.device)
        for name, process in self.processes.items():
            x, sites = x_1[name], None
            if name in self.path.space.categorical:
                x = one_hot(x, process.path.variable.size).to(output[name].dtype)
            if (part := self.path.revealing.get(name)) is not None:
                left = (1 - part.kappa(part.over_sites(t, x_t[name]))).clamp(min=1 / part.variable.sites)
                sites = part.active(x_t[name]) / left
            total = total + process.loss(x_t[name], t, x, output[name], sites=sites).mean()
        self.measure_error(x_1, output, t)
        state = {"ess": self.ess.clone(), "b": self.b.clone(), "power": self.power.clone()}
        return {"loss": total, "sampler_loss": total.detach(), **state}

    def extend(self) -> None:
        """Restarts the wait for an improvement."""
        self._history = []

    def state_dict(self) -> dict[str, Any]:
        return {"b": self.b, "ess": self.ess, "history": self._history}

    def load_state_dict(self, state: dict[str, Any], buffer: ReplayBuffer) -> None:
        self.b.copy_(state["b"])
        self.ess.copy_(state["ess"])
        self._history = list(state["history"])
        if buffer.filled:
            self.weigh(buffer)


def log_weights(terms: Tensor, b: Tensor) -> Tensor:
    """Returns log_ratio + (1−b) log p_ref − b E from the three columns of `terms`; −inf where E = +inf."""
    log_ratio, log_ref, energy = terms.unbind(1)
    inside = energy < torch.inf
    return torch.where(inside, log_ratio + (1 - b) * log_ref - b * torch.where(inside, energy, 0.0), -torch.inf)


def _largest(log_w: Callable[[Tensor], Tensor], least: Tensor, wanted: float) -> Tensor:
    """Returns the largest number between `least` and 1 at which weights have the effective sample size `wanted`.

    The effective sample size need not be monotone: a sampler that starts with the network of another run is best
    somewhere in between. So a grid is evaluated first, and the interval behind its last sufficient number is bisected.
    If none suffices, the result is the best number of the grid if that has half of `wanted`, otherwise `least`. Nothing
    waits for the device.
    """
    share = torch.linspace(0, 1, GRID + 1, dtype=least.dtype, device=least.device)
    grid = torch.lerp(least, torch.ones_like(least), share)  # exact at both ends
    ess = weight_ess(log_w(grid[:, None])).nan_to_num(0.0)
    good = ess >= wanted
    best = torch.where(ess.max() >= LEAST * wanted, ess.argmax(), 0)
    last = torch.where(good.any(), (good * torch.arange(GRID + 1, device=least.device)).max(), best)
    low, high = grid[last], grid[(last + good.any()).clamp(max=GRID)]
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        enough = weight_ess(log_w(middle)) >= wanted
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return low


add_options("EGM-SP", SPOptions)
add_method(
    "egm-sp",
    Trained(
        "the sampler's own draws, weighted exactly, with tempering by their effective sample size (default)",
        method=SelfProposal,
        options=SPOptions,
        defaults={"batch_size": 1024, "inner_steps": 20, "refresh": 2048, "buffer": 4 * 2048, "symmetries": True},
        t_min=0.0,  # path weights have no singular times
    ),
)
