"""The command line in-process: what it refuses, with which exit code and message."""

import sys
from pathlib import Path

import pytest
import torch

import egm
from egm.cli import main
from support.cli_cases import ISING, OWN, TINY, TINY_SP, results_of
from support.training import as_sampler


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_own(folder, monkeypatch):
    """Writes a module `own` into the current directory and forgets that of an earlier test."""
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own", raising=False)


# ---------------------------------------------------------------------- resuming


@pytest.fixture
def finished(folder):
    assert (
        main(["train", *ISING, *TINY, "--method", "egm-bs", "--steps", "2", "--evaluate", "false", "--out", "a"]) == 0
    )
    return folder / "a"


def test_a_complete_run_says_so_and_can_be_extended(finished, capsys):
    assert main(["train", "--resume", "a"]) == 0
    assert "a is complete" in capsys.readouterr().out
    same = ["--batch_size", "8", "--network", "mlp(width=8, depth=3)", "--paths.s", "masked", "--out", "a"]
    assert main(["train", "--resume", "a", "--steps", "3", *ISING[1:], *same, "--target", "Ising"]) == 0
    assert results_of("a")["steps"] == 3


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--batch_size", "9"], "batch_size = 8, but --batch_size 9"),
        (["--seed", "1"], "seed = 0, but --seed 1"),
        (["--method", "egm"], "method = egm-bs, but --method egm"),
        (["--target.beta", "0.5"], "target.beta = 0.4, but --target.beta 0.5"),
        (["--network", "MLP(width=9)"], "network = MLP(width=8, depth=3), but --network MLP(width=9, depth=3)"),
        (["--paths.s", "uniform"], "paths.s = Masked(schedule=Polynomial(power=1.0)), but --paths.s Uniform("),
        (["--recipe", "fast/gbrbm"], "recipe = None, but --recipe fast/gbrbm"),
        (["--out", "b"], "but --out"),
        (["--target", "gbrbm"], "'gbrbm' is not the run's target"),
        (["--target", "Ising(size=4, beta=0.4)"], "target = Ising(size=3, beta=0.4), but --target Ising(size=4"),
    ],
)
def test_resuming_with_other_options_is_refused(finished, capsys, given, expected):
    before = (finished / "config.yaml").read_bytes()
    assert main(["train", "--resume", "a", "--steps", "5", *given]) == 2
    assert expected in capsys.readouterr().err
    assert (finished / "config.yaml").read_bytes() == before


def test_a_run_made_in_python_is_continued_in_python(capsys):
    target = egm.Target(egm.Space(x=egm.Real(1)), lambda x: x.square().sum(-1))
    small = {"batch_size": 4, "proposals": 4, "refresh": 8, "network": "MLP(width=8)"}
    egm.fit(target, "egm", steps=1, out="a", progress=False, **small)
    assert main(["train", "--resume", "a", "--steps", "5"]) == 2
    assert "egm.resume('a', target=...)" in capsys.readouterr().err


def test_a_bad_energy_exits_1_and_keeps_the_checkpoint(folder, monkeypatch, capsys):
    write_own(folder, monkeypatch)
    command = [
        "train",
        "own:late_nan",
        *TINY,
        "--method",
        "egm-bs",
        "--steps",
        "100",
        "--checkpoint_every",
        "1",
        "--out",
        "a",
    ]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "the energy is nan at the state x=[" in error
    assert "Traceback" not in error
    assert "checkpoint is kept in a" in error
    state = torch.load("a/checkpoint.pt", weights_only=True)
    assert 1 <= state["step"] < 100
    assert all(torch.isfinite(x).all() for x in state["modules"]["network"].values())


DIVERGING = ["--learning_rate", "1e30", "--clip_gradient", "null"]


@pytest.mark.parametrize("inner", ["2", "100"], ids=["before a refresh", "at the end"])
@pytest.mark.parametrize("method", ["egm", "egm-bs", "egm-sp"])
def test_a_diverging_run_exits_1_and_keeps_no_broken_model(folder, capsys, method, inner):
    small = TINY_SP if method == "egm-sp" else TINY
    command = ["train", *ISING, *small, "--method", method, *DIVERGING, "--inner_steps", inner, "--steps", "8"]
    assert main([*command, "--out", "a"]) == 1
    said = capsys.readouterr()
    assert "egm: training diverged before step" in said.err
    assert "lower learning_rate (1e+30) or set clip_gradient (None)" in said.err
    assert "Traceback" not in said.err
    assert "checkpoint is kept" not in said.err  # there is none
    assert "egm sample" not in said.out
    kept = {file.name for file in (folder / "a").iterdir()}
    assert kept >= {"config.yaml", "environment.json"}
    assert not kept & {"model.safetensors", "checkpoint.pt", "results.json"}
    assert main(["sample", "a", "-n", "3"]) == 2
    assert "no trained network" in capsys.readouterr().err

    assert main([*command, "--checkpoint_every", "1", "--out", "b"]) == 1
    assert "the last good checkpoint is kept in b" in capsys.readouterr().err
    state = torch.load("b/checkpoint.pt", weights_only=True)
    assert 1 <= state["step"] < 8
    for tensors in (*state["modules"].values(), as_sampler(egm.load("b")).network.state_dict()):
        assert all(torch.isfinite(x).all() for x in tensors.values())
    assert not (folder / "b" / "results.json").exists()


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], None),
        (["trian"], "did you mean 'train'"),
        (["train"], "no target"),
        (["train", "isng"], "did you mean 'Ising'"),
        (["train", "ising"], "target.size"),
        (["train", *ISING, "--target.siez", "4"], "did you mean '--target.size'"),
        (["train", *ISING, "--stepz", "4"], "did you mean '--steps'"),
        (["train", *ISING, "--batch-size", "4"], "did you mean '--batch_size'"),
        (["train", *ISING, "--batch", "4"], "'--batch' is not an option"),  # no abbreviations
        (["train", *ISING, "--steps", "0"], "--steps"),
        (["train", *ISING, "--steps", "many"], "--steps"),
        (["train", *ISING, "--steps", "1", "--time_limit", "1"], "one of them"),
        (["train", *ISING, "--method", "egm-bss"], "did you mean 'egm-bs'"),
        (["train", *ISING, "--solver", "eulre"], "euler"),
        (["train", *ISING, "--epsilon", "2"], "epsilon"),
        (["train", *ISING, "--network", "MPL"], "did you mean 'MLP'"),
        (["train", *ISING, "--network", "MLP(widht=3)"], "did you mean 'width'"),
        (["train", *ISING, "--paths.s", "Maskd"], "did you mean 'Masked'"),
        (["train", *ISING, "--paths.v", "Masked"], "not a variable"),
        (["train", *ISING, "--processes.s", "discrete-jmp"], "did you mean 'DiscreteJump'"),
        (["train", *ISING, "--paths.s", "VE"], "acts on Real variables"),
        (["train", *ISING, "--device", "nowhere"], "nowhere"),
        (["train", *ISING, "--target", "gbrbm"], "two targets"),
        (["train", "spikeslab"], "made from data"),
        (["train", "gbrbm", "--processes.v", "jump", "--steps", "1"], "use method='egm'"),
        (["train", "--recipe", "fast/gbrm"], "did you mean 'fast/gbrbm'"),
        (["train", "--recipe", "missing.yaml"], "missing.yaml"),
        (["train", "--recipe"], "needs a value"),
        (["train", "--target", "no_such_module:f"], "no module 'no_such_module'"),
        (["train", "--target", "own:mak_target"], "did you mean 'make_target'"),
        (["train", "--target", "own:not_a_target"], "got int"),
        (["train", "--resume", "nowhere"], "not a run"),
        (["sample", "nowhere"], "not a run"),
        (["sample"], "run"),
        (["evaluate", "nowhere", "--repeatz", "3"], "did you mean '--repeats'"),
        (["list", "target"], "did you mean 'targets'"),
    ],
)
def test_wrong_input_exits_2_with_a_hint(folder, monkeypatch, capsys, argv, expected):
    write_own(folder, monkeypatch)
    assert main(argv) == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.err + said.out
    if expected is not None:
        assert expected in said.err
    assert not Path("runs").exists()


def test_tracebacks_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("EGM_TRACEBACK", "1")
    with pytest.raises(ValueError, match="did you mean 'Ising'"):
        main(["train", "isng"])
