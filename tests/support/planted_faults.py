"""User energies with one fault each, and what `egm.check` should say of it."""

import itertools
import math
from dataclasses import dataclass

import torch

from egm import Categorical, Real, Space, Target

X, MIXED = Space(x=Real(3)), Space(v=Real(2), h=Categorical(3, shape=4))
PARTICLES = Space(x=Real((4, 2)))
W = torch.eye(3)


@dataclass
class Fault:
    """An energy with a fault, and the finding that explains it."""

    name: str
    space: Space
    energy: object
    level: str
    finding: str
    message: str

    def target(self) -> Target:
        return Target(self.space, self.energy)  # type: ignore[arg-type]


def half_square(x):
    return 0.5 * x.square().sum(-1)


def draws_noise(x):
    return half_square(x) + torch.randn(x.shape[:-1])


def writes_into_its_input(x):
    x -= 1.0
    return half_square(x)


def loops(x):
    flat = x.reshape(-1, 3)
    return torch.stack([sum(((row[i] - i) ** 2 for i in range(3)), torch.zeros(())) for row in flat]).reshape(
        x.shape[:-1]
    )


def table_too_short(v, h):
    return half_square(v) + torch.tensor([0.0, 1.0])[h].sum(-1)


def fails_for_a_rare_symbol(a):
    return torch.where(a == 77, math.nan, 0.01 * a)


def detached_in_part(x):
    return half_square(x) + (x[..., 0].detach() * x[..., 1].detach()).sin() * 3


def root_of_zero(x):
    """Distances of a particle to itself: their gradient is NaN."""
    distance = (x[..., :, None, :] - x[..., None, :, :]).square().sum(-1).sqrt()
    return ((distance - 1).square()).sum((-1, -2)) + x.square().sum((-1, -2))


def springs(x):
    pairs = itertools.combinations(range(4), 2)
    return sum(((x[..., i, :] - x[..., j, :]).square().sum(-1) for i, j in pairs), torch.zeros(()))


def raises_far_out(x):
    if bool((x > 12).any()):
        raise ArithmeticError("too far")
    return half_square(x)


def broken_backward(x):
    return _Broken.apply(x)


class _Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return half_square(x)

    @staticmethod
    def backward(ctx, *cotangents):
        raise RuntimeError("no backward")


FAULTS = [
    Fault("shape", X, lambda x: 0.5 * x.square(), "problem", "calling", r"must return shape \(24,\), got \(24, 3\)"),
    Fault("total", X, lambda x: 0.5 * x.square().sum(), "problem", "calling", r"must return shape \(24,\), got \(\)"),
    Fault("batch mean", X, lambda x: half_square(x - x.mean(0)), "problem", "calling", "changes with the batch"),
    Fault("first axis", X, lambda x: x[:, 0] ** 2 + x[:, 1:].square().sum(-1), "problem", "batching",
          r"leading batch shape .*count axes from the end"),
    Fault("random", X, draws_noise, "problem", "calling", "two different answers for the same states"),
    Fault("in place", X, writes_into_its_input, "problem", "changes its input", r"writes into x.*not x -= 1"),
    Fault("half precision", X, lambda x: half_square(x).half(), "problem", "precision", r"torch\.float16"),
    Fault("integer", X, lambda x: half_square(x).long(), "problem", "calling", r"got torch\.int64; .*\.float\(\)"),
    Fault("names", X, lambda y: 0.5 * y.square().sum(-1), "problem", "calling", r"exactly the variables \['x'\]"),
    Fault("raises", X, lambda x: x @ torch.eye(4), "problem", "exception", "raised RuntimeError.*call it yourself"),
    Fault("raises far out", X, raises_far_out, "problem", "exception", "ArithmeticError: too far.*return .inf"),
    Fault("broken backward", X, broken_backward, "problem", "gradient", "cannot be computed .no backward"),
    Fault("device", X, lambda x: half_square(x).to("meta"), "problem", "calling", "create constants on the device"),
    Fault("sign", X, lambda x: -half_square(x), "problem", "sign", r"falls without bound along x\[0\].*from_log_prob"),
    Fault("sign, mixed", MIXED, lambda v, h: -half_square(v) + h.sum(-1), "problem", "sign", r"along v\[0\], v\[1\]"),
    Fault("NaN", X, lambda x: half_square(x) + x[..., 0].log(), "problem", "NaN",
          r"NaN on [45]\d % of draws.*constraint"),
    Fault("NaN far out", X, lambda x: torch.where(x[..., 0] > 15, math.nan, half_square(x)), "problem", "NaN",
          "draws 10 times as wide"),
    Fault("minus infinity", X, lambda x: x.relu().log().sum(-1), "problem", "−inf", r"−inf on 8\d % of draws"),
    Fault("far wall", X, lambda x: torch.where(x[..., 0] > 4, half_square(x), math.inf), "problem", "+inf",
          "zero density.*set loc and scale"),
    Fault("units", X, lambda x: 1e6 * half_square(x), "problem", "scale", r"times narrower.*divide it by kT"),
    Fault("location", X, lambda x: half_square(x - 500), "problem", "location",
          r"100 % of the descents .* try loc=500\.0, scale=1\.0"),
    Fault("wide", X, lambda x: half_square(x / 1e4), "warning", "scale", r"barely changes over a hundred.*raise scale"),
    Fault("no gradient", X, lambda x: half_square(x.detach()), "warning", "gradient", "has no gradient.*egm-sp"),
    Fault("wrong gradient", X, detached_in_part, "problem", "gradient", "disagrees with finite differences"),
    Fault("gradient of a root", Space(x=Real((4, 2))), root_of_zero, "problem", "gradient", "NaN or infinite.*itself"),
    Fault("ignored entry", X, lambda x: half_square(x[..., :2]), "problem", "ignored variable",
          r"does not depend on x\[2\]"),
    Fault("ignored variable", Space(x=Real(2), y=Real(())), lambda x, y: half_square(x), "problem", "ignored variable",
          "does not depend on y"),
    Fault("ignored symbols", MIXED, lambda v, h: half_square(v), "note", "ignored variable", "does not depend on h"),
    Fault("improper", X, lambda x: half_square(x).clamp(max=50), "problem", "improper", "stops growing far out"),
    Fault("improper, one side", X, lambda x: x.exp().sum(-1), "problem", "improper", r"along x\[0\], x\[1\], x\[2\]"),
    Fault("very wide", X, lambda x: half_square(x / 1e6), "problem", "improper", "or raise scale if it is confined"),
    Fault("NumPy", X, lambda x: half_square(x).numpy(), "problem", "calling", r"got ndarray; .*adapters\.from_numpy"),
    Fault("improper, positive", Space(s=Real((), constraint="positive")), lambda s: s.log(), "problem", "improper",
          "stops growing far out along s"),
    Fault("translation of numbers", X, lambda x: (x[..., 1:] - x[..., :-1]).square().sum(-1), "problem", "improper",
          r"moving all of x together.*Real\(\(particles, dimension\), centered=True\)"),
    Fault("translation", PARTICLES, springs, "problem", "improper", r"moving all of x together.*centered=True"),
    Fault("not invariant", Space(x=Real((4, 2), centered=True)), lambda x: (x - 1).square().sum((-1, -2)), "note",
          "centred", "is centered, but.*harmless"),
    Fault("symbol", MIXED, table_too_short, "problem", "symbols", "fails for h = 2 .*tables that are too short"),
    Fault("rare symbol", Space(a=Categorical(100, shape=())), fails_for_a_rare_symbol, "problem", "NaN", "a=77"),
    Fault("loop", X, loops, "warning", "batching", "torch operations for one state and .* for 16.*replace loops"),
    Fault("float32 constants", X, lambda x: half_square(x @ W), "warning", "dtype", r"fails for float64.*W\.to\(x\)"),
]  # fmt: skip


def box(x):
    return torch.where((x.abs() < 2).all(-1), x[..., 0], math.inf)


def coupled(v, h):
    return half_square(v - h[..., :2]) + 0.3 * h[..., 2:].sum(-1)


def on_symbols(a):
    return (a[..., :-1] == a[..., 1:]).sum(-1) * -0.7


CLEAN = {
    "real": Target(X, half_square),
    "scaled": Target(Space(x=Real(3, loc=500.0, scale=20.0)), lambda x: half_square((x - 490) / 15)),
    "scalar": Target(Space(x=Real(())), lambda x: (x.square() - 2).square()),
    "student": Target(Space(x=Real(2)), lambda x: 2.5 * (1 + x.square().sum(-1) / 3).log()),
    "box": Target(Space(x=Real(2)), box),
    "positive": Target(Space(s=Real(2, constraint="positive")), lambda s: (s - 1.5 * s.log()).sum(-1)),
    "interval": Target(Space(s=Real(2, constraint=(-1.0, 3.0))), lambda s: s.sum(-1)),
    "simplex": Target(Space(p=Real(4, constraint="simplex")), lambda p: -(p.log() * 0.5).sum(-1)),
    "particles": Target(Space(x=Real((4, 2), centered=True)), springs),
    "symbols": Target(Space(a=Categorical(3, shape=5)), on_symbols),
    "unequal symbols": Target(Space(a=Categorical([2, 3, 4])), lambda a: 0.5 * a.sum(-1).float()),
    "mixed": Target(MIXED, coupled),
    "log-density": Target.from_log_prob(X, lambda x: -half_square(x)),
}
