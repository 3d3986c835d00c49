"""Helpers for the tests of simulators: oracles on mixed spaces, runs in either precision, exact laws."""

import math
from typing import Any

import torch
from scipy import stats as scipy_stats

from egm.paths import VE, VP, CondOT, Cosine, Masked, Uniform
from egm.simulation.course import Course
from egm.simulation.simulate import simulate
from support.marginals import LabelledGaussians
from support.stats import FAILURE_RATE, assert_counts

DOUBLE = torch.float64
SOLVERS = ["bridge", "euler", "tau-leaping", "heun"]


def wide(variable):
    return VE(variable, sigma_min=0.1, sigma_max=10.0)  # so wide that the prior forgets the target's moments


REAL_PATHS = {"condot": CondOT, "vp": VP, "ve": wide}
LABEL_PATHS = {"condot": Masked, "vp": Uniform, "ve": lambda v: Masked(v, schedule=Cosine())}


def mixed(name, process):
    """A label and a real with zero mean, the real following `process`."""
    oracle = LabelledGaussians(REAL_PATHS[name], LABEL_PATHS[name], masses=(0.4, 0.6), means=(0.9, -0.6))  # type: ignore[arg-type]
    oracle.processes["x"] = process(oracle.path["x"])
    return oracle


def run(oracle, n, *, seed=0, dtype=DOUBLE, **given: Any):
    generator, course = torch.Generator().manual_seed(seed), Course(**given)
    return simulate(oracle.prediction, oracle.path, oracle.processes, n, course, generator=generator, dtype=dtype).state


def single(oracle):
    """The oracle's prediction at single-precision states and times."""

    def predict(x, t):
        assert all(value.dtype in (torch.float32, torch.int64) for value in x.values())
        doubled = {name: value.double() if value.is_floating_point() else value for name, value in x.items()}
        return {name: value.float() for name, value in oracle.prediction(doubled, t.double()).items()}

    return predict


def ising_law(oracle):
    return torch.softmax(-oracle.target.energy(s=oracle.states).double(), 0)


def assert_ising(draws, oracle):
    index = (draws["s"].flatten(1) * torch.tensor([8, 4, 2, 1])).sum(-1)
    assert_counts(torch.bincount(index, minlength=16), ising_law(oracle))


def assert_normal(values, label):
    p = scipy_stats.kstest(values.numpy(), "norm").pvalue
    assert p >= FAILURE_RATE, f"{label}: KS p = {p:.2e}"


def assert_labelled(draws, oracle):
    """The joint law: labels by χ², the real given each label by KS."""
    assert_counts(torch.bincount(draws["b"], minlength=2), oracle.masses)
    for b, mean in enumerate(oracle.means):
        assert_normal((draws["x"][draws["b"] == b] - mean) / math.sqrt(oracle.s2), f"x given b = {b}")
