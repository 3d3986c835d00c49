"""Measured weak orders of the simulators, without sampling: quadrature, one row per noise term, enumeration."""

import itertools

import numpy as np
import pytest
import torch

from egm.paths import VP, CondOT, Cosine, Masked, ProductPath, Time, Uniform
from egm.processes import Diffusion, Flow
from egm.simulation.clock import time_grid
from egm.simulation.course import Course
from egm.simulation.simulate import simulate
from egm.spaces import Real, Space
from support.cases import states
from support.marginals import LabelledGaussians, TinyIsing
from support.simulations import DOUBLE, REAL_PATHS, SOLVERS, ising_law


class StartAt(ProductPath):
    """A path whose simulations start from given states instead of random ones."""

    def __init__(self, path, start):
        super().__init__(path.space, path.paths)
        self.start = start

    def prior_sample(self, batch, t: Time = 0.0, **_):
        assert tuple(batch) == tuple(self.start["x"].shape)
        return dict(self.start)


def order(error, steps):
    errors = np.array([error(count) for count in steps])
    return -np.polyfit(np.log(steps), np.log(np.abs(errors)), 1)[0], errors


def bimodal(path):
    """E[x_1 | x_t] for x_1 ~ ½ N(−0.8, 0.2) + ½ N(0.8, 0.2)."""

    def predict(x, t):
        alpha, sigma2 = path["x"].alpha(t), path["x"].variance(t)
        variance = alpha**2 * 0.2 + sigma2
        side = torch.tanh(alpha * 0.8 * x["x"] / variance) * 0.8  # posterior mean of the component's centre
        return {"x": side + alpha * 0.2 / variance * (x["x"] - alpha * side)}

    return predict


@pytest.mark.parametrize(("solver", "expected"), [("euler", 1), ("bridge", 1), ("heun", 2)])
@pytest.mark.parametrize("make", [CondOT, VP])
def test_weak_order_of_the_flow(make, solver, expected):
    """E[x_1⁴], with the start integrated by the trapezoidal rule instead of sampled."""
    path = ProductPath(Space(x=Real(())), {"x": make(Real(()))})
    nodes = torch.linspace(-7, 7, 400, dtype=DOUBLE)
    weights = torch.softmax(-0.5 * nodes**2, 0)
    starting = StartAt(path, {"x": nodes})

    def error(steps):
        course = Course(time_grid(steps), solver)
        flow = {"x": Flow(path["x"])}  # type: ignore[arg-type]
        draws = simulate(bimodal(path), starting, flow, 400, course, dtype=DOUBLE).state
        return float((weights * draws["x"] ** 4).sum()) - (0.8**4 + 6 * 0.8**2 * 0.2 + 3 * 0.2**2)

    slope, errors = order(error, [64, 128, 256, 512])
    assert slope == pytest.approx(expected, abs=0.15), errors


@pytest.mark.parametrize("solver", ["bridge", "heun"])
@pytest.mark.parametrize("name", REAL_PATHS)
def test_late_grids_resolve_narrow_targets(name, solver):
    """The variance of N(0.6, 0.001) after 50 steps of the flow, which is affine."""
    oracle = LabelledGaussians(REAL_PATHS[name], masses=(1.0,), means=(0.6,), s2=0.001)  # type: ignore[arg-type]
    path, zero = oracle.path["x"], torch.zeros((), dtype=DOUBLE)
    mean, sd = path.alpha(zero) * 0.6, (path.alpha(zero) ** 2 * 0.001 + path.variance(zero)).sqrt()  # type: ignore[union-attr]
    starting = StartAt(oracle.path, {"x": torch.stack([mean, mean + sd])})
    error = {}
    for spacing in ("uniform", "late"):
        course = Course(time_grid(50, spacing=spacing), solver)
        x = simulate(oracle.prediction, starting, oracle.processes, 2, course, dtype=DOUBLE).state["x"]
        error[spacing] = abs(float((x[1] - x[0]).square()) / 0.001 - 1)
    assert error["late"] < 0.4 * error["uniform"]
    assert error["late"] < 0.16


@pytest.mark.parametrize("solver", ["euler", "bridge"])
@pytest.mark.parametrize("name", REAL_PATHS)
def test_weak_order_of_the_diffusion(monkeypatch, name, solver):
    """Var[x_1] of a Gaussian target. Every step is affine in its noise, so one row a noise term gives it exactly."""
    oracle = LabelledGaussians(REAL_PATHS[name], masses=(1.0,), means=(0.6,))  # type: ignore[arg-type]
    path, first = oracle.path["x"], torch.tensor(0.1, dtype=DOUBLE)
    alpha, sigma2 = path.alpha(first), path.variance(first)  # type: ignore[union-attr]

    def error(steps):
        unit = iter(torch.eye(steps + 2, dtype=DOUBLE)[1:])  # row 0 has no noise, row k the k-th draw alone
        start = alpha * 0.6 + (alpha**2 * 0.2 + sigma2).sqrt() * next(unit)
        monkeypatch.setattr(Real, "noise", lambda *_, **__: next(unit))
        # on the uniform grid the first-order terms of Euler–Maruyama nearly cancel
        course = Course(time_grid(steps, start=float(first), spacing="late"), solver)
        starting, processes = StartAt(oracle.path, {"x": start}), {"x": Diffusion(path)}  # type: ignore[arg-type]
        x = simulate(oracle.prediction, starting, processes, steps + 2, course, dtype=DOUBLE).state["x"]
        assert next(unit, None) is None
        assert float(x[0]) == pytest.approx(0.6, abs=0.3 / steps)
        return float((x[1:] - x[0]).square().sum()) - 0.2

    slope, errors = order(error, [128, 256, 512])
    assert slope == pytest.approx(1, abs=0.1), errors


@pytest.mark.parametrize("solver", SOLVERS[:3])
@pytest.mark.parametrize("make", [Masked, lambda v: Masked(v, schedule=Cosine()), Uniform], ids=["m", "m-cos", "u"])
def test_weak_order_on_symbols(make, solver):
    """The law over all states, propagated without sampling; the last step is the bridge's."""
    oracle = TinyIsing(make)  # type: ignore[arg-type]
    path, process = oracle.path["s"], oracle.processes["s"]
    running = states(path, running=True)  # type: ignore[arg-type]
    tables = {"bridge": path.bridge, "euler": process.euler_table, "tau-leaping": process.tau_leap_table}  # type: ignore[union-attr]
    symbols = running.flatten(1)
    ends = [int((running == state).flatten(1).all(-1).nonzero()) for state in oracle.states]

    def kernel(method, t, r):
        table = tables[method](running, oracle.prediction({"s": running}, t)["s"], t, r).flatten(1, 2)
        rows = [table[:, i, symbols[:, i]] for i in range(4)]  # K(x_r^i | x_t), [from, to]
        return torch.stack(rows).prod(0)

    start = torch.tensor(0.2, dtype=DOUBLE)
    running_log = oracle._log_joint(running, start)  # exact law at the start, so that only the steps err
    law_at_start = torch.softmax(torch.logsumexp(running_log, -1), 0)

    def error(steps):
        times, law = time_grid(steps, start=float(start)), law_at_start
        for i, (t, r) in enumerate(itertools.pairwise(times)):
            law = law @ kernel(solver if i < steps - 1 else "bridge", t, r)
        assert float(law.sum()) == pytest.approx(1)
        return float((law[ends] - ising_law(oracle)).abs().sum())

    slope, errors = order(error, [16, 32, 64, 128])
    assert slope == pytest.approx(1, abs=0.15), errors
