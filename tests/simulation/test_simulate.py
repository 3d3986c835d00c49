"""Simulators against exact laws, on every path and process; grids, precision, devices and errors."""

import itertools
import math

import numpy as np
import pytest
import torch

from egm.paths import VP, CondOT, GaussianPath, Masked, Polynomial, ProductPath, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow, Jump
from egm.simulation.clock import time_grid
from egm.simulation.course import Course
from egm.simulation.simulate import simulate
from egm.spaces import Categorical, Real, Space
from support.marginals import LabelledGaussians, TinyIsing
from support.simulations import (
    DOUBLE,
    REAL_PATHS,
    SOLVERS,
    assert_ising,
    assert_labelled,
    assert_normal,
    mixed,
    run,
    single,
)
from support.stats import assert_counts

# ---------------------------------------------------------------------- laws with the exact denoiser


@pytest.mark.parametrize("solver", SOLVERS[:3])
@pytest.mark.parametrize("make", [Masked, Uniform])
def test_ising_draws_follow_the_target(make, solver):
    oracle = TinyIsing(make)
    start = 0.01 if make is Uniform and solver != "bridge" else 0.0
    assert_ising(run(oracle, 6000, grid=time_grid(100, start=start), solver=solver), oracle)


# Heun is for flows
PAIRS = [pair for pair in itertools.product([Flow, Diffusion], SOLVERS) if pair != (Diffusion, "heun")]


@pytest.mark.parametrize(("process", "solver"), PAIRS)
@pytest.mark.parametrize("name", REAL_PATHS)
def test_mixed_draws_follow_the_target(name, process, solver):
    start = 0.0 if solver in ("bridge", "heun") else 0.01
    oracle = mixed(name, process)
    assert_labelled(run(oracle, 4000, grid=time_grid(200, start=start), solver=solver), oracle)


@pytest.mark.parametrize(
    ("solver", "stays"), [("bridge", 0.19 / 0.75), ("euler", 1 - 0.4 / 0.75), ("tau-leaping", math.exp(-0.4 / 0.75))]
)
def test_each_solver_takes_its_own_step(solver, stays):
    """κ = t²: the share of sites that stay hidden from t = 0.5 to 0.9, where κ̇/(1−κ) = 1/0.75 at the start."""
    path = ProductPath(Space(s=Categorical(2)), {"s": Masked(Categorical(2), schedule=Polynomial(2.0))})
    seen = []

    def predict(x, t):
        seen.append(x["s"] == 2)
        return {"s": torch.full((20_000, 2), 0.5, dtype=DOUBLE)}

    course, generator = Course(torch.tensor([0.5, 0.9, 1.0], dtype=DOUBLE), solver), torch.Generator().manual_seed(0)
    processes = {"s": DiscreteJump(path["s"])}  # type: ignore[arg-type]
    simulate(predict, path, processes, 20_000, course, generator=generator, dtype=DOUBLE)
    before, after = seen
    assert_counts(torch.bincount(after[before].long()), [1 - stays, stays])


class TabulatedJump(LabelledGaussians):
    """x_1 ~ N(0.3, 0.2): the exact jump kernel, a quadrature over the posterior of x_1, interpolated in x_t."""

    def __init__(self, path_class: type[GaussianPath], bins: int = 64) -> None:
        super().__init__(path_class, masses=(1.0,), means=(0.3,))
        self.processes = {"x": Jump(self.path["x"], bins=bins, limit=4.0)}  # type: ignore[arg-type, assignment]
        nodes, weights = np.polynomial.hermite_e.hermegauss(24)
        self.nodes, self.weights = torch.tensor(nodes), torch.tensor(weights / weights.sum())

    def prediction(self, state, t):
        jump, path, t = self.processes["x"], self.path["x"], t[0]
        at = torch.linspace(-4, 4, 161, dtype=DOUBLE)
        alpha, sigma2 = path.alpha(t), path.variance(t)  # type: ignore[union-attr]
        variance = 1 / (1 / self.s2 + alpha**2 / sigma2)
        mean = variance * (self.means[0] / self.s2 + alpha * at / sigma2)
        x_1 = mean + variance.sqrt() * self.nodes[:, None]
        kernel = torch.einsum("k,kxb->xb", self.weights, jump.kernel(at.expand_as(x_1), x_1, t))  # type: ignore[union-attr]
        place = ((state["x"] + 4) * 20).clamp(0, 159.999)
        low = place.long()
        return {"x": torch.lerp(kernel[low], kernel[low + 1], (place - low)[:, None])}


@pytest.mark.parametrize(("make", "solver"), [(CondOT, "bridge"), (VP, "euler")])
def test_continuous_jump_follows_the_target(make, solver):
    oracle = TabulatedJump(make)
    draws = run(oracle, 3000, grid=time_grid(200, spacing="late"), solver=solver)
    assert_normal((draws["x"] - 0.3) / math.sqrt(0.2), "x")


# ---------------------------------------------------------------------- grids, precision, devices, errors


def test_time_grids():
    for start in (0.0, 0.01, 1 / 3):
        for spacing in ("uniform", "late"):
            grid = time_grid(7, start=start, spacing=spacing)
            assert (grid.dtype, len(grid), float(grid[0]), float(grid[-1])) == (DOUBLE, 8, start, 1.0)
            assert bool((grid.diff() > 0).all())
    torch.testing.assert_close(time_grid(5, start=0.5).diff(), torch.full((5,), 0.1, dtype=DOUBLE))
    gaps = 1 - time_grid(5, start=0.5, spacing="late")
    torch.testing.assert_close(gaps / 0.5, torch.linspace(1, 0, 6, dtype=DOUBLE) ** 2)


GRIDS = {
    "one-step": time_grid(1, start=0.01),
    "two-steps": time_grid(2, start=0.01),
    "fine-end": torch.cat(
        [time_grid(20, start=0.01)[:-1], 1 - torch.tensor([1e-4, 1e-6, 1e-7, 5e-8, 1e-9, 0.0]).double()]
    ),
}


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize(("process", "solver"), PAIRS)
@pytest.mark.parametrize("name", REAL_PATHS)
def test_single_precision_is_finite_and_leaves_no_mask(name, process, solver, grid):
    oracle = mixed(name, process)
    options = {"generator": torch.Generator().manual_seed(0), "dtype": torch.float32}
    courses = [Course(grid, solver)]
    if solver == "bridge" and isinstance(oracle.path["b"], Masked):
        courses += [Course(grid, "first-hitting")]
    for course in courses:
        state = simulate(single(oracle), oracle.path, oracle.processes, 200, course, **options).state
        assert state["x"].dtype == torch.float32
        oracle.space.check(state)  # finite, and the mask symbol is not legal


@pytest.mark.parametrize("method", ["bridge", "first-hitting"])
def test_draws_come_from_the_seed_alone_and_carry_no_gradient(method):
    oracle = mixed("condot", Diffusion)
    slope = torch.ones((), dtype=DOUBLE, requires_grad=True)
    exact = oracle.prediction
    oracle.prediction = lambda x, t: {name: slope * value for name, value in exact(x, t).items()}  # type: ignore[method-assign]
    first, again, other = (run(oracle, 30, seed=seed, solver=method, grid=time_grid(10)) for seed in (0, 0, 1))
    before = torch.random.get_rng_state()
    oracle.processes = dict(reversed(oracle.processes.items()))
    reordered = run(oracle, 30, solver=method, grid=time_grid(10))
    assert torch.equal(torch.random.get_rng_state(), before)
    for name in first:
        assert torch.equal(first[name], again[name])
        assert torch.equal(first[name], reordered[name])
        assert not first[name].requires_grad
    assert not torch.equal(first["x"], other["x"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(("process", "solver"), [*PAIRS, (Jump, "euler"), (Flow, "first"), (Diffusion, "first")])
def test_cuda_without_synchronising(process, solver):
    path = ProductPath(Space(x=Real(3), b=Categorical([2, 3, 4])))
    processes = {"x": process(path["x"]), "b": DiscreteJump(path["b"])}  # type: ignore[arg-type]

    def predict(x, t):
        torch.cuda.set_sync_debug_mode("error")  # from the first prediction on
        output = {name: t.new_zeros((len(t), *p.output_shape)) for name, p in processes.items()}
        return {name: p.link(output[name]) for name, p in processes.items()}

    course = Course(time_grid(5, start=0.1), "first-hitting" if solver == "first" else solver)
    generator = torch.Generator("cuda").manual_seed(0)
    try:
        draws = simulate(predict, path, processes, 50, course, generator=generator, device="cuda").state
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(value.device.type == "cuda" for value in draws.values())
    path.space.check(draws)


def test_errors_name_the_fix():
    oracle = mixed("condot", Diffusion)
    grid = time_grid(10)
    for solver in ("euler", "tau-leaping"):
        with pytest.raises(ValueError, match=r"generator of 'x' is infinite at t = 0.0.*start=0.01.*'bridge'"):
            run(oracle, 5, grid=grid, solver=solver)
        with pytest.raises(ValueError, match=r"generator of 's' is infinite at t = 0.0"):
            run(TinyIsing(Uniform), 5, grid=grid, solver=solver)
    run(oracle, 5, grid=time_grid(1), solver="euler")  # one step is the bridge's
    run(mixed("ve", Diffusion), 5, grid=grid, solver="euler")
    with pytest.raises(ValueError, match=r"heun.*there is none; use solver='bridge'"):
        run(oracle, 5, grid=grid, solver="heun")
    with pytest.raises(
        ValueError, match="solver must be one of bridge, first-hitting, euler, tau-leaping, heun, got 'rk4'"
    ):
        run(oracle, 5, grid=grid, solver="rk4")
    with pytest.raises(ValueError, match=r"first hitting reveals masked variables.*\['s'\].*use solver='bridge'"):
        run(TinyIsing(Uniform), 5, solver="first-hitting")
    with pytest.raises(ValueError, match=r"the variables \['x'\] need a grid, for example grid=time_grid"):
        run(oracle, 5, solver="first-hitting")
    with pytest.raises(ValueError, match=r"processes must name the variables \['x', 'b'\], got \['x'\]"):
        simulate(oracle.prediction, oracle.path, {"x": oracle.processes["x"]}, 5, Course(grid))
    for bad in ([0.0, 0.5], [0.0, 0.6, 0.5, 1.0], [-0.1, 1.0], [0.0, 0.5, 0.5, 1.0]):
        with pytest.raises(ValueError, match=r"grid must increase from grid\[0\] >= 0 to exactly 1"):
            run(oracle, 5, grid=torch.tensor(bad))
    for bad in (torch.ones(1), torch.tensor([0, 1]), grid[None], grid.to("meta")):
        with pytest.raises(ValueError, match=r"at least two floats on the host.*time_grid"):
            run(oracle, 5, grid=bad)
    with pytest.raises(ValueError, match=r"which is 1 in torch\.float32"):
        run(oracle, 5, grid=torch.tensor([1 - 1e-12, 1.0], dtype=DOUBLE), dtype=torch.float32)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        time_grid(0)
    with pytest.raises(ValueError, match="0 <= start < 1, got 1"):
        time_grid(3, start=1.0)
    with pytest.raises(ValueError, match="spacing must be one of uniform, late, got 'early'"):
        time_grid(3, spacing="early")  # type: ignore[arg-type]
