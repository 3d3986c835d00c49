"""Removed options: each warns, and old files that hold them can still be used."""

import shutil

import pytest
import yaml

import egm
from egm.cli.main import main
from egm.config.options import REMOVED, removed_from_command
from egm.runs.directory import RunDirectory
from support.cli_cases import ISING, TINY_SP
from support.kept_runs import DATA
from support.training import SMALL, own_target, trainer_of


@pytest.mark.parametrize(("name", "value"), [("weight_decay", 0.1), ("evaluation_size", 50)])
def test_options_that_are_gone_warn_and_change_nothing(name, value):
    plain = egm.fit(own_target(), "egm", steps=3, **SMALL).sample(20)
    with pytest.warns(DeprecationWarning, match=f"{name} is no longer an option: {REMOVED[name]}"):
        found = egm.fit(own_target(), "egm", steps=3, **SMALL, **{name: value}).sample(20)
    assert found["x"].equal(plain["x"])


def test_what_only_the_command_line_says_still_arrives(tmp_path):
    with pytest.warns(DeprecationWarning, match="notes is no longer an option"):
        sampler = egm.fit(own_target(), "egm", steps=1, notes={"why": "a test"}, **SMALL)
    assert sampler.config["notes"] == {"why": "a test"}
    with pytest.warns(DeprecationWarning, match="source is no longer an option"):
        sampler = egm.fit(own_target(), "egm", steps=1, source="module:make", **SMALL)
    assert sampler.config["target"] == "module:make"


@pytest.mark.parametrize(
    "given", [["--weight_decay", "0.1"], ["--weight_decay=0.1"], ["--weight-decay", "0.1"], ["--weight_decay"]]
)
def test_the_command_line_says_it_in_a_line(tmp_path, capsys, given):
    assert main(["train", *ISING, *TINY_SP, *given, "--steps", "2", "--out", str(tmp_path / "a")]) == 0
    assert (
        "egm: --weight_decay is ignored, it is no longer an option: each method has its own" in capsys.readouterr().err
    )


def test_recipes_may_still_have_them(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("target: GBRBM()\negm: {weight_decay: 0.1, batch_size: 5}\n", encoding="utf-8")
    with pytest.warns(DeprecationWarning, match="weight_decay is no longer an option"):
        assert egm.recipes.load(str(file), "egm") == {"target": "GBRBM()", "method": "egm", "batch_size": 5}


def test_runs_that_have_them_go_on_as_they_began(tmp_path):
    """A run uses the weight decay of its configuration, or that of its method where there is none."""
    assert trainer_of(own_target(), "egm").optimizer.defaults["weight_decay"] == 0.01
    assert trainer_of(own_target(), "egm-sp").optimizer.defaults["weight_decay"] == 0.0
    states = {}
    for decay in (0.01, 0.5):
        folder = shutil.copytree(DATA / "kept_runs" / "reals-flow", tmp_path / str(decay))
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        (folder / "checkpoint.pt").unlink()  # the checkpoint holds the weight decay too
        (folder / "config.yaml").write_text(yaml.safe_dump(config | {"weight_decay": decay}), encoding="utf-8")
        egm.resume(folder, steps=20, progress=False)
        states[decay] = (folder / "model.safetensors").read_bytes()
    assert states[0.01] != states[0.5]


def test_each_method_has_its_weight_decay():
    ising = egm.targets.Ising(3, 0.4)
    decays = {"egm": 0.01, "egm-bs": 0.01, "egm-sp": 0.0, "leaps": 0.0, "leaps-mcmc": 0.0}
    for method, decay in decays.items():
        assert trainer_of(ising, method).optimizer.defaults["weight_decay"] == decay


def test_evaluations_of_old_runs_go_on_with_as_many_draws(tmp_path):
    """An evaluation while training takes as many draws as the run's configuration says."""
    floors = {}
    for size in (50, 2000):
        folder = shutil.copytree(DATA / "kept_runs" / "symbols-egm-bs", tmp_path / str(size))
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        changed = config | {"evaluation_size": size, "evaluate_every": 16}
        (folder / "config.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")
        egm.resume(folder, steps=16, progress=False)
        rows = RunDirectory(folder).read_metrics()
        (floors[size],) = {float(row["e_w1_floor"]) for row in rows if row.get("e_w1_floor")}
    assert floors[50] > 3 * floors[2000]


def test_words_after_a_removed_option_are_kept():
    assert removed_from_command(["--weight_decay", "--steps", "3"])[0] == ["--steps", "3"]
    assert removed_from_command(["--notes", "x"]) == (["--notes", "x"], [])
