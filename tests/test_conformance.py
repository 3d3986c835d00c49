"""Every process × method × space that is defined trains to its exact law; the others say why they cannot.

`conformance.json` holds the calibration: mean, standard deviation and worst distance of each cell over the seeds named
there. A cell passes below mean + 4 standard deviations, the same rule for all, with a seed of its own; the untrained
sampler, a run with uniform weights and several laws that are nearly right must all stay above. After changing a cell or
the training itself: `PYTHONPATH=tests python -m support.calibrate_conformance`.
"""

import json

import pytest

from egm.methods.egm_options import EGMOptions
from support.calibrate_conformance import SEEDS, TABLE, threshold
from support.conformance import CELLS, COMBINATIONS, COMMON, DRAWS, JUMP, PROBLEMS, Cell

SEED = 100
CALIBRATION = json.loads(TABLE.read_text(encoding="utf-8"))
LIMITS = {name: threshold(row) for name, row in CALIBRATION["cells"].items()}
UNDEFINED = [
    Cell("continuous", "egm-bs", {"x": (JUMP, "CondOT")}),
    Cell("mixed", "egm-bs", {"x": (JUMP, "CondOT"), "b": ("DiscreteJump", "Masked")}),
    Cell("mixed", "egm-bs", {"x": (JUMP, "VP"), "b": ("DiscreteJump", "Uniform")}, {"bootstrap": "single-site"}),
]


def test_the_calibration_is_of_these_cells():
    assert list(LIMITS) == list(CELLS)
    assert (CALIBRATION["common"], CALIBRATION["draws"]) == (COMMON, DRAWS)
    assert tuple(CALIBRATION["seeds"]) == SEEDS
    assert SEED not in CALIBRATION["seeds"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS, ids=str)
def test_trains_to_the_exact_law(name):
    cell = CELLS[name]
    assert cell.score(cell.train(SEED), SEED) < LIMITS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMBINATIONS, ids=str)
def test_untrained_samplers_and_uniform_weights_fail(name):
    """The controls of all cells on the same paths and processes; uniform weights mean the same by either method."""
    cell = COMBINATIONS[name]
    limit = max(LIMITS[key] for key, other in CELLS.items() if other.combination == cell)
    untrained = cell.train(SEED, steps=1, learning_rate=1e-12)
    assert cell.score(untrained, SEED) > limit
    uniform = cell.train(SEED, cell.uniform_target())
    assert cell.score(uniform, SEED) > limit


@pytest.mark.parametrize("problem", PROBLEMS)
def test_laws_that_are_nearly_right_fail(problem):
    limit = max(LIMITS[name] for name, cell in CELLS.items() if cell.problem == problem)
    for miss, draws in PROBLEMS[problem].near_misses.items():
        assert PROBLEMS[problem].distance(draws) > limit, miss


@pytest.mark.parametrize("cell", UNDEFINED, ids=str)
def test_bootstrapping_a_continuous_jump_says_why_it_cannot(cell):
    target = PROBLEMS[cell.problem].target
    calls = target.energy_calls
    with pytest.raises(ValueError, match=r"Jump of 'x'.* r < 1 .*consistent.*method='egm'.*Flow or Diffusion"):
        cell.train(SEED)
    assert target.energy_calls == calls, "refused before anything was computed"
    cell.combination.train(SEED, steps=1)  # and defined without bootstrapping


def test_every_process_meets_every_method_on_every_space():
    """No cell of the matrix is forgotten: what is defined is trained, the rest is refused."""
    trained = {(c.problem, c.method, dynamics_of(c)) for c in CELLS.values()}
    refused = {(c.problem, c.method, dynamics_of(c)) for c in UNDEFINED}
    reals, symbols = ("Diffusion", "Flow", "Jump"), ("Masked", "Uniform")
    matrix = {
        "continuous": {(real,) for real in reals},
        "discrete": {(symbol,) for symbol in symbols},
        "mixed": {(real, symbol) for real in reals for symbol in symbols},
    }
    cells = {(space, method, d) for space, row in matrix.items() for d in row for method in ("egm", "egm-bs")}
    assert trained | refused == cells
    assert refused == {(space, method, d) for space, method, d in cells if method == "egm-bs" and "Jump" in d}


def dynamics_of(cell: Cell) -> tuple[str, ...]:
    """The process of a real variable, the path of a categorical one, without their options."""
    words = (path if process == "DiscreteJump" else process for process, path in cell.dynamics.values())
    return tuple(word.split("(")[0] for word in words)


def test_every_option_value_is_trained_with():
    seen = {(name, value) for cell in CELLS.values() for name, value in cell.options.items()}
    expected = {
        "bootstrap": ("proposals", "single-site"),
        "energy_target": ("direct", "bootstrap"),
        "proposal": ("flat",),
        "symbol_loss": ("squared", "cross-entropy"),
        "real_loss": ("generator", "denoiser"),
    }
    assert {(name, value) for name, values in expected.items() for value in values} <= seen
    assert EGMOptions().proposal == "reference"  # everywhere else
    paths = {path for cell in CELLS.values() for _, path in cell.dynamics.values()}
    assert paths == {"CondOT", "VE", "VP", "Masked", "Masked(schedule=Cosine())", "Uniform"}
