"""The training loop: the paper's algorithm 1, for every method.

Outer loop: draw from the current sampler into the replay buffer. Inner loop: take end points from the buffer, compute
the method's loss, step. All random numbers come from one generator, and everything that the next step depends on is in
`state_dict`, so that a resumed run repeats an uninterrupted one bit by bit (on the CPU, with `steps`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from egm.network_sampler import NetworkSampler
from egm.runs.directory import RunDirectory
from egm.simulation.capture import CapturedStep
from egm.simulation.simulate import Simulation
from egm.train.buffer import ReplayBuffer
from egm.train.method import Method
from egm.train.options import TrainingOptions
from egm.train.progress import Progress
from egm.train.signals import Stopped, held_back
from egm.util.seeds import derive_seed

LAST_PART = 0.8  # share of training after which it is not cut short


class Diverged(ArithmeticError):
    """Error that the parameters of a network are no longer finite numbers."""


class Trainer:
    """Training loop of a sampler's network.

    Args:
        method: computes the loss.
        sampler: draws for the buffer; its network is the one that is trained, or its running average.
        options: options of the loop.
        steps, time_limit: limit of training, in gradient steps or in seconds.
        seed: seed of every random number.
        run: folder of checkpoints and metrics, if they are written.
        progress: display of the progress.
        evaluate: scores a sampler at a step, for the log.
        weight_decay: weight decay of AdamW, by default the method's.
    """

    def __init__(
        self,
        method: Method,
        sampler: NetworkSampler,
        options: TrainingOptions,
        *,
        steps: int | None,
        time_limit: float | None,
        seed: int,
        progress: Progress,
        run: RunDirectory | None = None,
        evaluate: Callable[[NetworkSampler, int], dict[str, float]] | None = None,
        weight_decay: float | None = None,
    ) -> None:
        if (steps is None) == (time_limit is None):
            raise ValueError("give steps or time_limit (seconds), one of them")
        self.method, self.sampler, self.options = method, sampler, options
        self.steps, self.time_limit, self.seed = steps, time_limit, seed
        self.run_directory, self.progress, self.evaluate = run, progress, evaluate
        self.generator = torch.Generator(sampler.device).manual_seed(seed)
        self.buffer = ReplayBuffer(options.buffer)
        self.average = AveragedModel(method.network, multi_avg_fn=self._average)
        groups = method.parameter_groups(options.learning_rate)
        self.peak_rates = [group["lr"] for group in groups]
        if on_gpu := sampler.device.type == "cuda":
            groups = [{**group, "lr": torch.tensor(group["lr"], device=sampler.device)} for group in groups]
        decay = method.weight_decay if weight_decay is None else weight_decay
        self.optimizer = torch.optim.AdamW(groups, weight_decay=decay, fused=on_gpu, capturable=on_gpu)
        self.captured = CapturedStep(self.gradient_step, self.generator, method.energy.target)
        self.drawing = CapturedStep(self._draw, self.generator, method.energy.target, what="the simulation")
        self.step, self.seconds, self._began = 0, 0.0, time.monotonic()
        self.share = 1.0  # share of the limit that is used
        self._counted_before = method.energy.target.energy_calls, method.energy.target.score_calls
        self.between_steps = True  # whether a run can continue from the present state
        self.score_is_due = False  # a checkpoint is written before the evaluation that belongs to it
        self.pending: dict[str, Tensor] = {}  # sums of logged values since the last line
        self.pending_steps = 0

    # ------------------------------------------------------------------ the loop

    def train(self) -> None:
        """Trains until the limit is reached; on an interrupt, saves and re-raises it."""
        self._began = time.monotonic() - self.seconds
        with self.progress, held_back() as deliver_interrupt:
            if self.score_is_due:
                self.score()
            try:
                while not self.finished():
                    deliver_interrupt()
                    self.between_steps = False
                    if self.step % self.options.inner_steps == 0:
                        self.check()
                        if self.progress_made() < LAST_PART and self.method.finished():
                            self.begin_last_part()
                        if self.method.needs_draws:
                            self.method.refresh(self.buffer, self.draw())
                    self.set_learning_rates()
                    values = self.captured((self.buffer.filled, self.method.phase))
                    self.update_averages()
                    self.step += 1
                    self.report(values)
                self.check()
            except KeyboardInterrupt as interrupt:
                if self.between_steps:
                    self.save()
                    if isinstance(interrupt, Stopped):
                        interrupt.saved = self.run_directory is not None
                raise
            self.log()
            self.save()
            deliver_interrupt()
            if self.options.evaluate_every:
                self.score()

    def draw(self) -> Simulation:
        """Draws new end points from the sampler, in latent coordinates, valid until the next call."""
        return Simulation.of(self.drawing(("draws", id(self.sampler.network))))

    def _draw(self) -> dict[str, Tensor]:
        n, steps = self.options.refresh, self.options.refresh_steps
        return self.method.draw(self.sampler, n, steps=steps, generator=self.generator).tensors()

    def gradient_step(self) -> dict[str, Tensor]:
        """Takes end points from the buffer, computes the loss and makes a step of AdamW; returns values to log."""
        x_1 = self.method.end_points(self.buffer, self.options.batch_size, self.generator)
        losses = self.method.losses(x_1, first=self.step == 0, generator=self.generator)
        self.optimizer.zero_grad(set_to_none=True)
        losses.pop("loss").backward()
        if self.options.clip_gradient is not None:
            for group in self.optimizer.param_groups:
                torch.nn.utils.clip_grad_norm_(group["params"], self.options.clip_gradient)
        self.optimizer.step()
        return losses

    def set_learning_rates(self) -> None:
        """Sets the learning rates of the cosine schedule."""
        cosine = 0.5 * (1 + math.cos(math.pi * self.progress_made()))
        for group, peak in zip(self.optimizer.param_groups, self.peak_rates, strict=True):
            final = min(self.options.final_learning_rate, peak)
            rate = final + (peak - final) * cosine
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # the CUDA graph of a step reads it there
            else:
                group["lr"] = rate

    def update_averages(self) -> None:
        """Updates the running averages of the energy model and of the network that draws use."""
        done = self.progress_made()
        self.method.after_step(done)
        # An extended run continues to average, although a smaller share of it is done.
        if self.options.ema and (done >= self.options.ema_start or self.average.n_averaged > 0):
            self.average.update_parameters(self.method.network)
            self.sampler.network = self.average.module

    def _average(self, averages: Any, parameters: Any, count: Any) -> None:
        """Updates the mean of the networks with weights d^age, d = `ema`; the first has no extra weight."""
        decay, n = self.options.ema, int(self.average.n_averaged)  # torch keeps it on the host
        share = (1 - decay) / (1 - decay ** (n + 1))  # weight of the newest
        get_ema_multi_avg_fn(1 - share)(averages, parameters, count)

    def finished(self) -> bool:
        """Returns whether the limit is reached."""
        return self.progress_made() >= 1

    def progress_made(self) -> float:
        """Returns the share of training that is done, 0 to 1."""
        if self.steps is not None:
            return self.step / (self.steps * self.share)
        self.seconds = time.monotonic() - self._began
        return min(1.0, self.seconds / (float(self.time_limit or 1) * self.share))

    def begin_last_part(self) -> None:
        """Begins the last part, a quarter as long as training so far: learning rates fall and averages form."""
        self.share *= self.progress_made() / LAST_PART
        self.progress.say(f"the effective sample size no longer improves at step {self.step}: the last part begins")

    def extend(self) -> None:
        """Uses all of a new limit."""
        self.share = 1.0
        self.method.extend()

    # ------------------------------------------------------------------ logging and saving

    def report(self, values: dict[str, Tensor]) -> None:
        """Sums up the values of a step; at their intervals logs, then saves, then evaluates."""
        for name, value in values.items():
            self.pending[name] = self.pending[name] + value if name in self.pending else value.clone()
        self.pending_steps += 1
        self.between_steps = True
        every = self.options
        if self.step % every.log_every == 0:
            self.log()
        if every.checkpoint_every and self.step % every.checkpoint_every == 0:
            self.save()
        if every.evaluate_every and self.step % every.evaluate_every == 0 and not self.finished():
            self.score()

    def log(self) -> None:
        """Writes the means since the last line."""
        if self.pending_steps:
            names, means = list(self.pending), torch.stack(list(self.pending.values())).double() / self.pending_steps
            self.pending, self.pending_steps = {}, 0
            self.write(dict(zip(names, means.tolist(), strict=True)))

    def score(self) -> None:
        """Evaluates against the reference, with separate random numbers."""
        if self.evaluate is not None:
            self.write(self.evaluate(self.sampler, derive_seed(self.seed, self.step)))

    def write(self, values: dict[str, float]) -> None:
        """Writes one line of the log."""
        self.seconds = time.monotonic() - self._began
        row = {
            "step": self.step,
            "seconds": round(self.seconds, 2),
            **self.calls(),
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            **values,
        }
        if self.run_directory is not None:
            self.run_directory.append_metrics(row)
        self.progress.update(self.progress_made(), row)

    def calls(self) -> dict[str, int]:
        """Returns the numbers of energies and gradients that this run has evaluated."""
        target, (energies, scores) = self.method.energy.target, self._counted_before
        return {"energy_calls": target.energy_calls - energies, "score_calls": target.score_calls - scores}

    def check(self) -> None:
        """Raises if parameters are not finite or an energy was invalid since the last check; waits for the device."""
        sums = [p.detach().sum() for group in self.optimizer.param_groups for p in group["params"]]
        if not bool(torch.stack(sums).isfinite().all()):
            raise Diverged(
                f"training diverged before step {self.step}: the networks' parameters are no longer finite;"
                f" lower learning_rate ({self.options.learning_rate:g}) or set clip_gradient"
                f" ({self.options.clip_gradient})"
            )
        self.method.energy.check()

    def save(self) -> None:
        """Writes a checkpoint, after `check`."""
        self.check()
        self.seconds = time.monotonic() - self._began
        if self.run_directory is not None:
            self.run_directory.save(self.state_dict(), self.sampler.config, self.sampler.modules())

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that the next step depends on."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "share": self.share,
            **self.calls(),
            "modules": {name: module.state_dict() for name, module in self.method.modules().items()},
            "method": self.method.state_dict(),
            "average": self.average.state_dict(),
            "error": self.sampler.error.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "buffer": self.buffer.state_dict(),
            "generator": self.generator.get_state(),
            "device": self.generator.device.type,
            "pending": self.pending,
            "pending_steps": self.pending_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the output of `state_dict`."""
        target = self.method.energy.target
        self.step, self.seconds, self.share = state["step"], state["seconds"], state["share"]
        self._began = time.monotonic() - self.seconds
        self._counted_before = target.energy_calls - state["energy_calls"], target.score_calls - state["score_calls"]
        for name, module in self.method.modules().items():
            module.load_state_dict(state["modules"][name])
        self.average.load_state_dict(state["average"])
        if int(state["average"]["n_averaged"]) > 0:
            self.sampler.network = self.average.module
        own = [dict(group) for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, kept in zip(self.optimizer.param_groups, own, strict=True):  # settings of the device stay
            group |= {"fused": kept["fused"], "capturable": kept["capturable"]}
            on_device = isinstance(kept["lr"], Tensor)
            group["lr"] = kept["lr"].fill_(float(group["lr"])) if on_device else float(group["lr"])
        self.buffer.load_state_dict(state["buffer"])
        self.method.load_state_dict(state["method"], self.buffer)
        self.sampler.error.load_state_dict(state["error"])
        if state["device"] == self.generator.device.type:
            self.generator.set_state(state["generator"].cpu())
        else:  # a generator of another kind of device cannot take over the state
            self.generator.manual_seed(derive_seed(self.seed, self.step))
        self.pending, self.pending_steps = state["pending"], state["pending_steps"]
        every = self.options.evaluate_every
        self.score_is_due = bool(every) and self.step % every == 0 and not self.finished()
