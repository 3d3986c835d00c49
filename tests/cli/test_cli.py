"""The command line in-process: what it trains, writes and says."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import egm
from egm.cli import main
from egm.config.registry import PATHS, PROCESSES, TARGETS
from egm.evaluation.records import _finite
from egm.methods.egm_options import EGMOptions
from egm.methods.registry import METHODS, OPTION_GROUPS
from egm.networks import NETWORKS
from egm.train.options import TrainingOptions
from support.cli_cases import ISING, OWN, TINY, TINY_SP, config_of, results_of

RECORD = {
    *("target", "method", "role", "overrides", "recipe", "seed", "n", "repeats", "metrics", "resampled", "ess"),
    *("log_z", "log_z_stderr", "log_z_exact", "elbo", "eubo", "observables", "modes", "train_seconds", "concurrent"),
    *("steps", "energy_calls", "score_calls", "eval_energy_calls", "peak_memory_gib", "symmetries", "dtype"),
    *("hardware", "torch", "commit", "command", "stated"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_module(folder, monkeypatch, request):
    name = f"own_{request.node.name}"  # a unique name, because modules stay imported
    (folder / f"{name}.py").write_text(OWN, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


# ---------------------------------------------------------------------- train, sample, evaluate


def test_train_then_sample_then_evaluate(capsys):
    assert main(["train", *ISING, *TINY, "--method", "egm-bs", "--steps", "3", "--seed", "5", "--out", "runs/a"]) == 0
    said = capsys.readouterr().out
    assert "e_w1" in said
    assert "m_w1" in said
    assert "floor" in said
    assert "egm sample runs/a" in said
    first = results_of("runs/a")
    assert set(first) == RECORD
    assert (first["target"], first["method"], first["seed"]) == ("Ising(size=3, beta=0.4)", "egm-bs", 5)
    assert first["steps"] == 3
    assert first["train_seconds"] > 0
    assert first["energy_calls"] > 0
    assert first["command"].startswith("egm train ising --target.size 3")
    assert first["overrides"]["batch_size"] == 8
    assert "seed" not in first["overrides"]
    assert first["peak_memory_gib"] is None
    assert first["recipe"] is None
    assert first["role"] == "main"

    assert main(["sample", "runs/a", "-n", "7", "--seed", "1", "--out", "here/draws.npz"]) == 0
    with np.load("here/draws.npz", allow_pickle=False) as written:
        assert list(written) == ["s", ".log_weights", ".energies"]
        assert written["s"].shape == (7, 3, 3)
        expected = egm.load("runs/a").sample(7, seed=1)["s"].numpy()
        np.testing.assert_array_equal(written["s"], expected)
    assert [file.name for file in Path("here").iterdir()] == ["draws.npz"]

    capsys.readouterr()
    assert main(["evaluate", "runs/a", "--n", "50", "--repeats", "4", "--floor_pairs", "3", "--seed", "2"]) == 0
    second = results_of("runs/a")
    assert (second["n"], second["repeats"]) == (50, 4)
    assert second["metrics"]["e_w1"]["floor_pairs"] == 3
    score = second["metrics"]["e_w1"]
    assert f"{score['mean']:.3f} ± {score['std']:.3f}" in capsys.readouterr().out
    training = ("steps", "train_seconds", "energy_calls", "command", "overrides", "role")
    assert [first[key] for key in training] == [second[key] for key in training]
    direct = egm.evaluate(egm.load("runs/a"), n=50, repeats=4, floor_pairs=3, seed=2)
    assert second["metrics"] == direct["metrics"]


def test_folders_are_made_unique_and_never_overwritten(capsys):
    command = ["train", *ISING, *TINY, "--steps", "1", "--evaluate", "false", "--method", "egm", "--seed", "3"]
    assert main(command) == 0
    assert main(command) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["ising-egm-3", "ising-egm-3-2"]
    assert not Path("runs/ising-egm-3/results.json").exists()
    assert main([*command, "--out", "runs/ising-egm-3"]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_options_go_over_a_recipe():
    command = ["train", "--recipe", "fast/gbrbm", "--method", "egm", *TINY, "--evaluate", "false", "--role", "smoke"]
    recipe = egm.recipes.load("fast/gbrbm", "egm")
    changed = ["--time_limit", "0.2", "--learning_rate", "0.00123", "--paths.v", "VP", "--concurrent", "2"]
    assert main([*command, *changed, "--inner_steps", str(recipe["inner_steps"]), "--out", "a"]) == 0
    config = config_of("a")
    assert config["time_limit"] == 0.2
    assert config["steps"] is None
    assert config["paths"]["v"] == "VP()"
    assert config["learning_rate"] == 0.00123
    assert config["inner_steps"] == recipe["inner_steps"]
    notes = config["notes"]
    assert notes["recipe"] == "fast/gbrbm"
    assert notes["role"] == "smoke"
    assert notes["concurrent"] == 2
    assert notes["paper"] == {"e_w1": [0.33, 0.02], "x_w2": [0.63, 0.1]}
    assert notes["overrides"] == {
        **{"batch_size": 8, "learning_rate": 0.00123},
        **{"network": "MLP(width=8)", "paths.v": "VP", "proposals": 4, "refresh": 16, "sample_steps": 4},
        "time_limit": 0.2,
    }


def test_arguments_of_a_recipes_target_can_be_changed(capsys):
    given = ["--method", "egm-bs", "--steps", "1", "--target.size", "3", "--out", "a"]
    command = ["train", "--recipe", "fast/ising5-b04", *TINY, *given]
    assert main(command) == 0
    assert config_of("a")["target"] == "Ising(size=3, beta=0.4)"
    assert results_of("a")["overrides"]["target.size"] == 3
    assert "paper" not in capsys.readouterr().out  # its numbers are for another target


def test_a_recipe_of_ones_own(folder):
    text = "target: Funnel(dim=2)\ncommon: {learning_rate: 2e-3, batch_size: 4}\negm: {steps: 2}\n"
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    small = ["--proposals", "4", "--refresh", "8", "--network", "MLP(width=8)", "--progress", "false"]
    assert main(["train", "--recipe", "mine.yaml", "--method", "egm", *small, "--evaluate", "false", "--out", "a"]) == 0
    config = config_of("a")
    assert (config["learning_rate"], config["batch_size"], config["steps"]) == (0.002, 4, 2)


def test_every_option_reaches_the_run():
    def other(field, hint):
        kinds = get_args(hint) if NoneType in get_args(hint) else (hint,)
        if get_origin(kinds[0]) is Literal:
            return next(choice for choice in get_args(kinds[0]) if choice not in (field.default, "heun", "auto"))
        if kinds[0] is bool:
            return not field.default
        return (field.default or 0) + 1 if kinds[0] is int else 0.5 * (field.default or 1.0)

    groups = (TrainingOptions, EGMOptions)
    wanted = {f.name: other(f, get_type_hints(group)[f.name]) for group in groups for f in dataclasses.fields(group)}
    wanted |= {"batch_size": 5, "proposals": 6, "refresh": 7, "solver": "tau-leaping"}
    wanted |= {"estimator": "end-points"}  # lattices have no scores
    argv = [token for name, value in wanted.items() for token in (f"--{name}", str(value))]
    argv += ["--network", "mlp(width=4)", "--steps", "2", "--progress", "false", "--method", "egm-bs"]
    argv += ["--dtype", "float64", "--seed", "7", "--evaluate", "false", "--out", "a"]
    assert main(["train", *ISING, *argv]) == 0
    config = config_of("a")
    assert {name: config[name] for name in wanted} == wanted
    assert config["dtype"] == "float64"
    assert config["seed"] == 7
    assert config["network"] == "MLP(width=4, depth=3)"
    argv = [*TINY, "--method", "idem", "--estimator", "end-points", "--steps", "2", "--evaluate", "false"]
    assert main(["train", "funnel", "--target.dim", "2", *argv, "--out", "b"]) == 0
    assert config_of("b")["estimator"] == "end-points"


# ---------------------------------------------------------------------- user-defined energies


def test_own_target_is_imported_to_train_and_resume_and_only_there(own_module, folder, monkeypatch, capsys):
    source = f"{own_module}:make_target"
    assert main(["train", "--target", source, *TINY, "--method", "egm-bs", "--steps", "2", "--out", "a"]) == 0
    assert "no reference draws" in capsys.readouterr().out
    assert config_of("a")["target"] == source
    assert main(["train", "--resume", "a", "--steps", "4", "--progress", "false"]) == 0
    assert config_of("a")["steps"] == 4
    (folder / f"{own_module}.py").unlink()
    monkeypatch.delitem(sys.modules, own_module)
    assert main(["sample", "a", "-n", "3"]) == 0  # needs no energy, so imports nothing
    assert (folder / "a" / "draws.npz").is_file()
    assert main(["evaluate", "a"]) == 2
    assert "--target module:function" in capsys.readouterr().err
    assert main(["train", "--resume", "a", "--steps", "6"]) == 2
    assert f"no module '{own_module}'" in capsys.readouterr().err


def test_own_target_may_be_an_object_and_stand_first(own_module):
    assert (
        main(["train", f"{own_module}:target", *TINY, "--steps", "1", "--method", "egm", "--processes.x", "jump"]) == 0
    )
    assert config_of("runs/target-egm-0")["processes"]["x"].startswith("Jump(")


def test_draws_are_weighed_with_an_own_target(own_module, folder, monkeypatch, capsys):
    source = f"{own_module}:make_target"
    assert main(["train", "--target", source, *TINY_SP, "--steps", "2", "--out", "a"]) == 0
    said = capsys.readouterr().out
    assert f"egm sample a -n 1000 --seed 1 --target {source} --out" in said
    assert "egm.load('a', target)" in said
    monkeypatch.delitem(sys.modules, own_module)
    assert main(["sample", "a", "-n", "40", "--seed", "3", "--out", "plain.npz"]) == 0
    assert "pass target= to egm.load, or --target to `egm sample`" in capsys.readouterr().out
    assert main(["sample", "a", "-n", "40", "--seed", "3", "--target", source, "--out", "weighed.npz"]) == 0
    assert "ESS" in capsys.readouterr().out
    target = sys.modules[own_module].make_target()
    expected = egm.load("a", target).sample(40, seed=3)
    with np.load("plain.npz", allow_pickle=False) as plain, np.load("weighed.npz", allow_pickle=False) as weighed:
        assert list(plain) == ["x"]
        assert list(weighed) == ["x", ".log_weights", ".energies"]
        np.testing.assert_array_equal(weighed["x"], plain["x"])
        assert expected.log_weights is not None
        np.testing.assert_array_equal(weighed[".log_weights"], expected.log_weights.numpy())
        assert weighed[".log_weights"].std() > 0

    text = (folder / f"{own_module}.py").read_text(encoding="utf-8")
    (folder / "another.py").write_text(text.replace("egm.Real(2)", "egm.Real(3)"), encoding="utf-8")
    monkeypatch.delitem(sys.modules, "another", raising=False)
    assert main(["sample", "a", "--target", "another:make_target"]) == 2
    assert "the run was made for" in capsys.readouterr().err
    assert main(["sample", "a", "--target", f"{own_module}:mak_target"]) == 2
    assert "did you mean 'make_target'" in capsys.readouterr().err
    assert not (folder / "a" / "draws.npz").exists()


# ---------------------------------------------------------------------- help and lists


def test_help_names_every_option_with_its_meaning(capsys):
    assert main(["train", "ising", "--help_all"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for group in OPTION_GROUPS.values():
        assert all(f"--{field.name} " in said for field in dataclasses.fields(group))
    assert "--target.beta" in said
    assert "number K of proposals" in said
    assert "default: 1024" in said  # the batch of the default method
    assert main(["train", "ising", "--method", "egm", "--help_all"]) == 0
    assert "default: 256" in capsys.readouterr().out
    assert main(["train", "--recipe", "paper/gbrbm", "--method", "egm", "--help_all"]) == 0
    assert "default: 300" in " ".join(capsys.readouterr().out.split())  # the recipe's batch
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == egm.__version__


@pytest.mark.parametrize("terminal", [False, True])
def test_list_shows_everything(monkeypatch, capsys, terminal):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert ("┃" in said) == terminal
    names = [*(name.lower() for name in TARGETS), *PATHS, *PROCESSES, *NETWORKS, *egm.recipes.names(), *METHODS]
    assert [name for name in names if name not in said] == []
    assert "size, beta, J=1.0, field=0.0" in said
    assert "exact, mcmc when large" in said


ALONE = """
import builtins, sys

ALLOWED = {"egm", "torch", "numpy", "scipy", *sys.stdlib_module_names}
plain = builtins.__import__

def checked(name, globals=None, locals=None, fromlist=(), level=0):
    asker = str((globals or {}).get("__name__")).partition(".")[0]
    if asker == "egm" and level == 0 and name.partition(".")[0] not in ALLOWED:
        raise ImportError(f"there is no {name}")
    return plain(name, globals, locals, fromlist, level)

builtins.__import__ = checked
import egm
"""


def alone(code):
    """Run it in a Python where egm can import torch, numpy, scipy and what comes with Python, and nothing else."""
    return subprocess.run(
        [sys.executable, "-c", ALONE + code], capture_output=True, text=True, check=False, timeout=120
    )


def test_the_library_needs_none_of_the_command_lines_packages(tmp_path):
    code = f"""
space = egm.Space(x=egm.Real(2), h=egm.Categorical(2, shape=2))
target = egm.Target(space, lambda x, h: (x - h).square().sum(-1))
small = {{"steps": 2, "batch_size": 8, "refresh": 16, "network": "MLP(width=8)", "device": "cpu"}}
draws = egm.fit(target, **small).sample(100, seed=0)
print(draws.summary(), draws.ess)
draws.write(r"{tmp_path / "draws.npz"}")
egm.fit(target, "egm-bs", proposals=4, energy_network="MLP(width=8)", **small).sample(3)
assert egm.fit(target, "gibbs", steps=2, warmup=1, device="cpu").sample(3)["x"].shape == (3, 2)
"""
    done = alone(code)
    assert done.returncode == 0, done.stderr
    assert "log Z" in done.stdout


@pytest.mark.parametrize(
    ("code", "package"), [("import egm.cli.parsing", "jsonargparse"), ("egm.recipes.load('fast/gbrbm')", "yaml")]
)
def test_that_test_notices_a_package(code, package):
    done = alone(code)
    assert done.returncode == 1
    assert f"there is no {package}" in done.stderr


def test_records_have_no_infinities():
    """JSON has neither infinities nor NaN: both become null."""
    record = {"elbo": -math.inf, "n": 3, "metrics": {"e_w1": {"mean": math.nan}}, "values": [1.5, math.inf], "x": None}
    expected = {"elbo": None, "n": 3, "metrics": {"e_w1": {"mean": None}}, "values": [1.5, None], "x": None}
    assert _finite(record) == expected
