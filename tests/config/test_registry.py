"""User-defined parts can be named once they are registered; errors explain what is not or cannot be registered."""

import re
from dataclasses import dataclass

import pytest
import torch

import egm
from egm.config.parts import make_path
from egm.config.registry import register
from egm.config.targets import target_expression
from egm.methods import Trained, register_method
from egm.methods.egm import EGM
from egm.methods.egm_options import EGMOptions
from egm.methods.registry import METHODS, OPTION_GROUPS, option_names
from egm.spaces import Categorical, Real, Space
from support.registries import kept

TINY = {"steps": 1, "network": "MLP(width=4)", "progress": False, "device": "cpu"}


class Steeper(egm.paths.CondOT):
    """A user-defined path."""


class Milder(egm.processes.Diffusion):
    """A user-defined process."""


class Steps:
    """A user-defined schedule."""

    def __call__(self, t):
        return t**3

    def derivative(self, t):
        return 3 * t**2

    def inverse(self, kappa):
        return kappa ** (1 / 3)


@dataclass(frozen=True)
class Options:
    """User-defined options.

    Attributes:
        patience_of_mine: nothing.
    """

    patience_of_mine: int = 3


def gaussian():
    return egm.Target(Space(x=Real(1)), lambda x: x.square().sum(-1))


def test_every_kind_of_part_can_be_named():
    assert register(Steeper) is Steeper
    register(Milder)
    register(Steps)
    space = Space(x=Real(1), s=Categorical(2, shape=3))
    path = make_path(space, {"x": "steeper", "s": "Masked(schedule=Steps())"})
    assert type(path["x"]) is Steeper
    assert type(path["s"].schedule) is Steps  # type: ignore[union-attr]
    sampler = egm.fit(gaussian(), "egm", paths={"x": "Steeper"}, processes={"x": "Milder"}, proposals=2, **TINY)
    assert (sampler.config["paths"], sampler.config["processes"]) == ({"x": "Steeper()"}, {"x": "Milder()"})
    again = egm.fit(gaussian(), "egm", paths={"x": Steeper(Real(1))}, processes={"x": Milder}, proposals=2, **TINY)
    assert again.config["processes"] == {"x": "Milder()"}


def test_what_is_not_registered_says_so():
    with pytest.raises(ValueError, match=r"Steeper is not registered.*@egm\.config\.register"):
        egm.fit(gaussian(), paths={"x": Steeper(Real(1))}, **TINY)
    with pytest.raises(ValueError, match=r"Milder is not registered.*@egm\.config\.register"):
        egm.fit(gaussian(), processes={"x": Milder}, **TINY)
    with pytest.raises(ValueError, match=r"'mine' is not a method"):
        egm.fit(gaussian(), "mine", **TINY)
    with pytest.raises(TypeError, match="target or path or schedule or process can be registered"):
        register(Options)
    with pytest.raises(TypeError, match="for methods use register_method"):
        register(EGM)


@pytest.mark.parametrize("name", ["CondOT", "cond_ot", "Cosine", "Flow", "Ising", "MALA"])
def test_names_of_the_library_are_not_taken(name):
    with pytest.raises(ValueError, match=f"'{name}' is a name of the library;"):
        register(type(name, (Steeper,), {}))
    with pytest.raises(ValueError, match=f"'{name}' is a name of the library;"):
        register_method(name, Trained("mine", EGM, EGMOptions))


def test_methods_bring_options_whose_names_are_new():
    @dataclass(frozen=True)
    class Clashing:
        proposals: int = 3

    with pytest.raises(ValueError, match=r"proposals of 'mine' is an option of estimates \(EGM.*choose another name"):
        register_method("mine", Trained("mine", EGM, Clashing))
    assert "mine" not in METHODS
    register_method("mine", Trained("first", EGM, Options))
    assert OPTION_GROUPS["mine"] is Options
    register_method("mine", Trained("second", EGM, EGMOptions, {"proposals": 2}))  # a cell that is run again
    assert METHODS["mine"].about == "second"
    assert "mine" not in OPTION_GROUPS
    sampler = egm.fit(gaussian(), "mine", **TINY)
    assert (sampler.config["method"], sampler.config["proposals"]) == ("mine", 2)


def test_recipes_have_sections_for_registered_methods(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("target: Funnel(dim=2)\nmine: {patience_of_mine: 5}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="'mine' is not a section of the recipe"):
        egm.recipes.read(str(file))
    register_method("mine", Trained("mine", EGM, Options))
    assert egm.recipes.load(str(file), "mine") == {"target": "Funnel(dim=2)", "method": "mine", "patience_of_mine": 5}
    assert egm.recipes.methods(str(file)) == ["mine"]


def test_runs_of_unknown_methods_say_what_to_import(tmp_path):
    with kept():
        register_method("mine", Trained("mine", EGM, EGMOptions, {"proposals": 2}))
        egm.fit(gaussian(), "mine", out=tmp_path / "run", **TINY)
        assert egm.load(tmp_path / "run").config["method"] == "mine"
    with pytest.raises(ValueError, match=re.escape("the method 'mine' is not known here")):
        egm.load(tmp_path / "run")


def test_options_may_inherit_from_a_class_that_no_group_is_made_of():
    @dataclass(frozen=True)
    class Base:
        strength_of_mine: float = 1.0

    @dataclass(frozen=True)
    class Own(EGMOptions, Base):
        pass

    @dataclass(frozen=True)
    class Wider(Own):
        reach_of_mine: int = 2

    register_method("mine", Trained("mine", EGM, Own))
    sampler = egm.fit(gaussian(), "mine", strength_of_mine=3.0, proposals=2, **TINY)
    assert sampler.config["strength_of_mine"] == 3.0
    register_method("mine", Trained("mine", EGM, Wider))
    assert {"strength_of_mine", "reach_of_mine"} <= set(option_names())
    assert len(option_names()) == len(set(option_names()))


def test_a_registration_that_is_refused_changes_nothing():
    @dataclass(frozen=True)
    class Clashing:
        proposals: int = 3

    register_method("mine", Trained("first", EGM, Options))
    with pytest.raises(ValueError, match="choose another name"):
        register_method("mine", Trained("second", EGM, Clashing))
    assert METHODS["mine"].about == "first"
    assert "patience_of_mine" in option_names()


class Points(egm.Target):
    """A registered target whose options are kept in another form than its expression has."""

    def __init__(self, *, width: float = 1.0, centers: object = (0.0, 1.0)) -> None:
        self.width, self.centers = width, torch.as_tensor(centers)
        super().__init__(Space(x=Real(1)), lambda x: 0.5 * (x / self.width).square().sum(-1))

    def __repr__(self) -> str:
        return f"Points(width={self.width}, centers={self.centers.tolist()})"


class Forgetful(Points):
    """A registered target whose expression makes another target."""

    def __repr__(self) -> str:
        return "Forgetful(width=3.0)" if self.width != 3.0 else "Forgetful(width=3.1)"


def test_expressions_of_registered_targets():
    register(Points)
    register(Forgetful)
    assert target_expression(Points(width=2.0, centers=[1.0, 2.0])) == "Points(width=2.0, centers=[1.0, 2.0])"
    assert target_expression(Forgetful(width=2.0)) is None
