"""Options of the training loop, the same for every method."""

from __future__ import annotations

from dataclasses import dataclass

from egm.config.options import check_numbers
from egm.simulation.clock import SolverChoice


@dataclass(frozen=True)
class TrainingOptions:
    """Options of the training loop.

    Attributes:
        batch_size: states in one gradient step.
        inner_steps: gradient steps between two refreshes of the replay buffer.
        refresh: draws that each refresh adds.
        buffer: draws that the buffer keeps.
        learning_rate, final_learning_rate: first and last learning rate of AdamW, with a cosine between them.
        clip_gradient: largest norm of a gradient (None: no limit).
        ema, ema_start: decay d of the running average of the network that draws use (weights d^age), and the share of
            training after which averaging begins; ema = 0 switches it off.
        sample_steps: steps of one simulation; where every variable is masked, there is one step for each site.
        refresh_steps: steps of the simulations for the buffer, if fewer are wanted.
        solver: solver of the simulation; "auto" reveals the sites of masked variables one at a time ("first-hitting")
            and follows bridges otherwise.
        log_every: gradient steps between lines of the log.
        checkpoint_every: gradient steps between checkpoints; one is always written at the end.
        evaluate_every: gradient steps between evaluations against the target's reference, 0 for none (on the command
            line 1000 where the reference is exact).
        symmetries: build the relabellings of symbols that the target declares into the networks; results record them.
    """

    batch_size: int = 256
    inner_steps: int = 100
    refresh: int = 2000
    buffer: int = 10_000
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-5
    clip_gradient: float | None = 1.0
    ema: float = 0.999
    ema_start: float = 0.5
    sample_steps: int = 100
    refresh_steps: int | None = None
    solver: SolverChoice = "auto"
    log_every: int = 50
    checkpoint_every: int = 1000
    evaluate_every: int = 0
    symmetries: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "inner_steps", "refresh", "buffer", "sample_steps", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.refresh_steps is not None and self.refresh_steps < 1:
            raise ValueError(f"refresh_steps must be at least 1, got {self.refresh_steps}; leave it out otherwise")
        for name in ("checkpoint_every", "evaluate_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} counts steps and must be at least 0, got {getattr(self, name)}")
        check_numbers(
            self, positive=("learning_rate", "clip_gradient"), non_negative=("final_learning_rate",),
            decays=("ema",), shares=("ema_start",),
        )  # fmt: skip
