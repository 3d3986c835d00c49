"""Chains on the command line: train, sample and evaluate, interrupts, and refused options."""

import signal
from pathlib import Path

import numpy as np
import pytest

import egm
from egm.baselines.chain_run import ChainRun
from egm.cli import main
from egm.methods.registry import METHODS
from support.cli_cases import ISING, OWN, config_of, results_of

SHORT = ["--steps", "40", "--device", "cpu", "--progress", "false"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_then_sample_then_evaluate(capsys):
    assert main(["train", *ISING, "--method", "gibbs", "--chains", "5", *SHORT, "--seed", "3", "--out", "runs/g"]) == 0
    said = capsys.readouterr()
    assert "3 × 200 draws on either side" in said.out  # as many as there are
    assert "egm sample runs/g" in said.out
    record, outcome = results_of("runs/g"), config_of("runs/g")["outcome"]
    assert (record["method"], record["seed"], record["steps"]) == ("gibbs", 3, 40)
    assert record["overrides"] == {"chains": 5, "steps": 40}
    assert record["energy_calls"] == outcome["energy_calls"] == 74 + 5 * 40 * 18 + 5 * 40
    assert record["score_calls"] == 0
    assert record["train_seconds"] == outcome["seconds"]
    assert record["diagnostics"] == outcome["diagnostics"]
    assert record["diagnostics"]["energy"]["ess"] > 0
    assert all(record[name] is None for name in ("ess", "log_z", "elbo", "eubo", "resampled"))

    assert main(["sample", "runs/g", "-n", "7", "--seed", "1"]) == 0
    assert "Markov chains" in capsys.readouterr().out
    with np.load("runs/g/draws.npz", allow_pickle=False) as written:
        assert list(written) == ["s", ".energies"]
        np.testing.assert_array_equal(written["s"], egm.load("runs/g").sample(7, seed=1)["s"].numpy())

    assert main(["evaluate", "runs/g", "--n", "50", "--repeats", "2", "--floor_pairs", "3"]) == 0
    again = results_of("runs/g")
    assert (again["n"], again["repeats"]) == (50, 2)
    assert [again[name] for name in ("energy_calls", "steps", "command")] == [
        record[name] for name in ("energy_calls", "steps", "command")
    ]


def test_an_energy_of_ones_own_by_tempering(folder, monkeypatch):
    (folder / "own_of_chains.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    options = ["--method", "tempering", "--replicas", "3", "--warmup", "5", *SHORT]
    assert main(["train", "own_of_chains:make_target", *options]) == 0
    config = config_of("runs/make_target-tempering-0")
    assert (config["target"], config["replicas"]) == ("own_of_chains:make_target", 3)
    assert "inverse_temperatures=[1, 0.3162, 0.1]" in config["outcome"]["kernel"]


def test_the_papers_recipe(capsys):
    assert main(["train", "--recipe", "paper/ising5-b02", "--method", "gibbs", *SHORT]) == 0
    assert "0.100 ± 0.020" in capsys.readouterr().out  # the paper's number next to ours
    config = config_of("runs/ising-gibbs-0")
    assert (config["chains"], config["steps"]) == (4, 40)
    assert config["notes"]["paper"] == {"e_w1": [0.10, 0.02], "m_w1": [0.06, 0.02]}
    assert config["notes"]["overrides"] == {"steps": 40}


@pytest.mark.parametrize(("warmup", "said"), [("0", "kept the states so far"), ("50", "before a state was kept")])
def test_a_signal_saves_and_says_what_there_is(monkeypatch, capsys, warmup, said):
    """Stops after seven steps, during or after warm-up."""
    advance, steps = ChainRun._advance, []

    def stopping(run):
        steps.append(1)
        if len(steps) == 7:
            signal.raise_signal(signal.SIGTERM)
        advance(run)

    monkeypatch.setattr(ChainRun, "_advance", stopping)
    command = ["train", *ISING, "--method", "gibbs", "--warmup", warmup, *SHORT, "--out", "a run"]
    assert main(command) == 128 + signal.SIGTERM
    error = capsys.readouterr().err
    assert said in error
    assert "--resume" not in error
    assert len(steps) == 7
    assert Path("a run/model.safetensors").is_file() == (warmup == "0")
    if warmup == "0":
        assert "egm sample 'a run'" in error
        assert main(["sample", "a run", "-n", "28"]) == 0
        assert config_of("a run")["outcome"]["step"] == 7
    else:
        assert main(["sample", "a run", "-n", "28"]) == 2
        assert "run them again" in capsys.readouterr().err


def test_chains_are_not_resumed(capsys):
    assert main(["train", *ISING, "--method", "gibbs", *SHORT, "--evaluate", "false", "--out", "g"]) == 0
    before = Path("g/config.yaml").read_bytes()
    assert main(["train", "--resume", "g", "--steps", "80"]) == 2
    assert "g is a run of chains (gibbs), which are not continued; start another one" in capsys.readouterr().err
    assert Path("g/config.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--method", "gibs"], "did you mean 'gibbs'"),
        (["--method", "gibbs", "--batch_size", "4"], "batch_size is an option of"),
        (["--method", "gibbs", "--replicas", "4"], "replicas is an option of tempering"),
        (["--method", "gibbs", "--network", "MLP"], "no use for network"),
        (["--method", "gibbs", "--paths.s", "Masked"], "no use for paths"),
        (["--method", "egm", "--chains", "4"], "chains is an option of gibbs, mala"),
        (["--method", "mala"], "use gibbs"),
        (["--method", "gibbs", "--energy_calls", "many"], "--energy_calls"),
    ],
)
def test_wrong_input_exits_2_with_a_hint(capsys, options, expected):
    assert main(["train", *ISING, *options]) == 2
    assert expected in capsys.readouterr().err
    assert not Path("runs").exists()


def test_help_and_list_show_them(capsys):
    assert main(["train", "--help_all"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "chains (gibbs, mala, swendsen-wang, tempering): --chains N" in said
    assert "inverse temperature of the hottest replica" in said
    assert main(["list", "methods"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name}  " in said for name, kind in METHODS.items() if not kind.trains)
