"""Constructor expressions: everything built in comes back from its text, and nothing but known names is ever called."""

import sys

import pytest
import torch

from egm import targets
from egm.config.parts import make_body, make_path, make_processes
from egm.config.registry import PATHS, PROCESSES, SCHEDULES, TARGETS
from egm.config.targets import make_space, make_target, target_expression
from egm.networks.registry import NETWORKS
from egm.paths import VE, CondOT, Cosine, Masked, Polynomial, ProductPath
from egm.processes import Jump
from egm.spaces import Categorical, Real, Space
from egm.util.expressions import arguments, describe, evaluate, nearest
from support.cases import DISCRETE, GAUSSIAN_AND_POINT, SYMBOLS
from support.network_cases import BODIES, denoiser_outputs

# ---------------------------------------------------------------------- there and back


@pytest.mark.parametrize(
    "make", [*GAUSSIAN_AND_POINT.values(), *DISCRETE.values()], ids=[*GAUSSIAN_AND_POINT, *DISCRETE]
)
def test_paths_come_back(make):
    variable = Real(2) if make in GAUSSIAN_AND_POINT.values() else Categorical(3, shape=2)
    space, path = Space(a=variable), make(variable)
    text = describe(path)
    again = make_path(space, {"a": text})["a"]
    assert type(again) is type(path)
    assert again.variable == variable
    assert describe(again) == text
    assert {k: v for k, v in vars(again).items() if k != "variable"} == {
        k: v for k, v in vars(path).items() if k != "variable"
    }


def test_every_path_schedule_process_and_network_is_covered():
    assert {type(make(Real(2))).__name__ for make in GAUSSIAN_AND_POINT.values()} | {
        type(make(Categorical(2))).__name__ for make in DISCRETE.values()
    } == set(PATHS)
    assert set(SCHEDULES) == {"Polynomial", "Cosine"}
    assert set(PROCESSES) == {"Flow", "Diffusion", "Jump", "DiscreteJump"}
    assert {body for body, _, _ in BODIES.values()} == set(NETWORKS.values())


@pytest.mark.parametrize("schedule", [Polynomial(), Polynomial(2.5), Cosine()], ids=repr)
def test_schedules_come_back_inside_their_path(schedule):
    variable = Categorical(2, shape=3)
    text = describe(Masked(variable, schedule=schedule))
    assert text == f"Masked(schedule={schedule!r})"
    assert make_path(Space(s=variable), {"s": text})["s"].schedule == schedule  # type: ignore[union-attr]


@pytest.mark.parametrize("name", PROCESSES)
def test_processes_come_back(name):
    variable = Categorical(2) if name == "DiscreteJump" else Real(2)
    path = ProductPath(Space(a=variable))
    process = PROCESSES[name](path["a"])  # type: ignore[arg-type]
    again = make_processes(path, {"a": describe(process)})["a"]
    assert type(again) is type(process)
    assert vars(again) == vars(process)


def test_options_of_processes_and_paths_are_written_down():
    path = ProductPath(Space(x=Real(1)), {"x": VE(Real(1), sigma_min=0.02, sigma_max=3.5)})
    jump = make_processes(path, {"x": "jump(bins=12, limit=2.5)"})["x"]
    assert isinstance(jump, Jump)
    assert (jump.bins, jump.limit) == (12, 2.5)
    assert describe(jump) == "Jump(bins=12, limit=2.5)"
    assert describe(path["x"]) == "VE(sigma_min=0.02, sigma_max=3.5)"


@pytest.mark.parametrize("case", BODIES)
def test_networks_come_back(case):
    body, space, options = BODIES[case]
    network = body(space, denoiser_outputs(space), **options)
    text = describe(network)
    again = make_body(space, denoiser_outputs(space), text)
    assert type(again) is body
    assert describe(again) == text
    assert all(f"{name}={value}" in text for name, value in options.items())
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in network.state_dict().items()}


MADE = [
    targets.Ising(3, 0.4),
    targets.Ising(4, 0.25, J=-1.0, field=0.5),
    targets.Potts(3, 3, 0.9),
    targets.SpinGlass(4, 2, 0.7),
    targets.GBRBM(),
    targets.JointMoG(),
    targets.JointMoG(dim=3),
    targets.ManyWell(),
    targets.GMM40(),
    targets.Funnel(dim=3),
    targets.DW4(),
    targets.JointDW4(),
    targets.LJ13(),
    targets.LJ55(),
]


@pytest.mark.parametrize("target", MADE, ids=repr)
def test_targets_come_back(target):
    assert target_expression(target) == repr(target)
    again = make_target(repr(target))
    assert type(again) is type(target)
    assert again.space == target.space
    state = target.space.reference_sample(5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.energy(**state), target.energy(**state))


def test_targets_from_data_or_of_ones_own_have_no_expression():
    """All other targets of the package do."""
    spike = targets.SpikeSlab([[1.0, 0.5], [0.2, 1.0], [0.1, 0.3]], [1.0, 2.0, 0.5])
    own = targets.Target(Space(x=Real(1)), lambda x: x[..., 0], name="Ising(size=3, beta=0.4)")
    for target in (spike, targets.GaussianMixturePosterior([0.1, 2.0, -1.0], 2), own):
        assert target_expression(target) is None
    assert {type(target).__name__ for target in MADE} | {"SpikeSlab", "GaussianMixturePosterior"} == set(TARGETS)


SPACES = [
    Space(x=Real(2)),
    Space(x=Real(()), y=Real((2, 3), loc=-1.5, scale=0.25)),
    Space(x=Real(2, loc=[0.1, -2.0], scale=[1e-3, 20.0])),
    Space(x=Real((4, 2), centered=True, scale=2.0)),
    Space(p=Real(3, constraint="simplex"), s=Real(1, constraint="positive"), u=Real(2, constraint=(-1.0, 2.5))),
    *(Space(s=variable) for variable in SYMBOLS.values()),
    Space(s=Categorical([[2, 3], [4, 5]]), x=Real(1), t=Categorical(7, shape=(2, 3))),
]


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_spaces_come_back(space):
    again = make_space(repr(space))
    assert again == space
    assert list(again) == list(space)
    assert repr(again) == repr(space)


# ---------------------------------------------------------------------- what is evaluated


def known(calls):
    """One name, that records its calls."""

    def pair(a=0, *, b=None):
        calls.append((a, b))
        return a, b

    return {"Pair": pair, "Other-One": lambda: "other"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Pair", (0, None)),
        ("pair", (0, None)),
        ("  PAIR(3) ", (3, None)),
        ("Pair(a=-1.5e3, b=(1, [2, 'x'], {'k': None}))", (-1500.0, (1, [2, "x"], {"k": None}))),
        ("Pair(Pair(1, b=True), b=pair(b=2))", ((1, True), (0, 2))),
        ("other-one", "other"),
        ("otherone", "other"),
        ("Other_One()", "other"),
    ],
)
def test_calls_of_known_names_with_literals(text, value):
    assert evaluate(text, known([]), kind="a pair") == value


HOSTILE = {
    "attribute": "Pair.__class__",
    "attribute-call": "Pair.__class__()",
    "attribute-argument": "Pair(a=Pair.__globals__)",
    "method": "Pair(a='{}'.format(1))",
    "unknown-name": "open",
    "unknown-call": "print('called')",
    "unknown-argument": "Pair(a=print('called'))",
    "import": "__import__('os').system('true')",
    "plain-import": "__import__('this')",
    "eval": "eval('1')",
    "lambda": "lambda: 1",
    "lambda-argument": "Pair(a=lambda: 1)",
    "called-lambda": "(lambda: Pair)()",
    "comprehension": "[Pair() for _ in (1, 2)]",
    "comprehension-argument": "Pair(a=[x for x in (1,)])",
    "generator": "Pair(a=(x for x in (1,)))",
    "walrus": "(y := 1)",
    "f-string": "Pair(a=f'{Pair()}')",
    "conditional": "Pair(a=1 if True else 2)",
    "power": "Pair(a=9**9**9)",
    "multiplication": "Pair(a='x'*9)",
    "subscript": "Pair(a=(1, 2)[0])",
    "name-as-argument": "Pair(a=Pair)",
    "star": "Pair(*[1])",
    "double-star": "Pair(**{'a': 1})",
    "twice": "Pair(a=1, a=2)",
    "unhashable": "Pair(a={[]: 1})",
    "call-of-a-call": "Pair()()",
    "two-statements": "Pair(); Pair()",
    "statement": "import os",
    "assignment": "a = Pair()",
    "string": "'Pair'",
    "number": "3",
    "nothing": "",
    "parentheses": "(" * 10_000,
    "calls": "Pair(a=" * 5_000 + "1" + ")" * 5_000,
    "signs": "Pair(a=" + "-" * 100_000 + "1)",
    "sum": "+".join(["1"] * 100_000),
    "dots": "a" + ".b" * 100_000,
    "negations": "not " * 50_000 + "1",
    "lists": "Pair(a=" + "[" * 5_000 + "]" * 5_000 + ")",
    "digits": "Pair(a=" + "9" * 10_000 + ")",
    "zero-byte": "Pair(a=1)\0",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_anything_else_is_refused_and_not_evaluated(text, capsys, monkeypatch):
    calls, before = [], set(sys.modules)
    with monkeypatch.context() as patch:  # undone before a failure is reported, which imports
        patch.setattr("builtins.__import__", lambda *args, **kwargs: pytest.fail(f"imports {args[0]}"))
        with pytest.raises(ValueError, match=r"."):
            evaluate(text, known(calls), kind="a pair")
    assert calls == []
    assert set(sys.modules) == before
    assert capsys.readouterr().out == ""


def test_options_are_checked_before_anything_is_called():
    calls = []
    with pytest.raises(ValueError, match="'c' is not an option of 'Pair\\(c=1\\)'"):
        evaluate("Pair(c=1)", known(calls), kind="a pair")
    with pytest.raises(ValueError, match=r"'Pair\(1, 2\)': too many positional arguments"):
        evaluate("Pair(1, 2)", known(calls), kind="a pair")
    assert calls == []


def test_arguments_are_read_without_a_call():
    calls = []
    assert arguments("pair(1, b='x')", known(calls), kind="a pair") == ("Pair", {"a": 1, "b": "x"})
    assert arguments("Pair", known(calls), kind="a pair") == ("Pair", {})
    with pytest.raises(ValueError, match="is not an option"):
        arguments("Pair(z=1)", known(calls), kind="a pair")
    assert calls == []


# ---------------------------------------------------------------------- what is said


def test_near_misses_name_the_nearest():
    with pytest.raises(ValueError, match=r"'Isin' is not a target; did you mean 'Ising'\? \(known: DW4, .*SpinGlass\)"):
        make_target("Isin(size=3)")
    with pytest.raises(ValueError, match=r"'sise' is not an option of .*; did you mean 'size'"):
        make_target("Ising(sise=3, beta=0.4)")
    with pytest.raises(ValueError, match="'maskd' is not a path; did you mean 'Masked'"):
        make_path(Space(s=Categorical(2)), {"s": "maskd"})
    with pytest.raises(ValueError, match="'sigma' is not an option of 'VE\\(sigma=2\\)'; did you mean 'sigma_m"):
        make_path(Space(x=Real(1)), {"x": "VE(sigma=2)"})
    with pytest.raises(ValueError, match="'Cosin' is not a path; did you mean 'Cosine'"):
        make_path(Space(s=Categorical(2)), {"s": "Masked(schedule=Cosin())"})
    with pytest.raises(ValueError, match="'difusion' is not a process; did you mean 'Diffusion'"):
        make_processes(ProductPath(Space(x=Real(1))), {"x": "difusion"})
    with pytest.raises(ValueError, match="'residual-mpl' is not a network; did you mean 'ResidualMLP'"):
        make_body(Space(x=Real(1)), {"x": (1,)}, "residual-mpl")
    with pytest.raises(ValueError, match="'Reel' is not a space; did you mean 'Real'"):
        make_space("Space(x=Reel(2))")


def test_far_misses_list_what_there_is():
    with pytest.raises(ValueError, match=r"'qqq' is not a fruit \(known: apple, pear\)"):
        nearest("qqq", ["pear", "apple"], kind="a fruit")
    assert nearest("A-p_pLe", ["pear", "apple"], kind="a fruit") == "apple"
    with pytest.raises(ValueError, match="did you mean 'apple'"):
        nearest("aple", ["pear", "apple"], kind="a fruit")


def test_missing_arguments_are_named():
    with pytest.raises(ValueError, match=r"'Ising\(size=3\)': missing a required argument: 'beta'"):
        make_target("Ising(size=3)")


def test_paths_are_made_for_their_own_variable():
    path = make_path(Space(x=Real(2), y=Real(3)), {"y": "condot"})
    assert isinstance(path["y"], CondOT)
    assert path["y"].variable == Real(3)
    with pytest.raises(TypeError, match="acts on Categorical variables"):
        make_path(Space(x=Real(2)), {"x": "masked"})
