"""Runs in other processes that are stopped by SIGKILL, SIGTERM or SIGINT, and then resumed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from egm.cli import main
from egm.runs.directory import RunDirectory

OPTIONS = [
    *("gbrbm", "--method", "egm-bs", "--device", "cpu", "--progress", "false", "--evaluate", "false"),
    *("--batch_size", "8", "--proposals", "4", "--refresh", "16", "--buffer", "40", "--inner_steps", "5"),
    *("--network", "MLP(width=8)", "--energy_network", "MLP(width=8)", "--sample_steps", "4", "--ema_start", "0.2"),
    *("--log_every", "1", "--checkpoint_every", "7", "--evaluate_every", "16"),
]


def start(folder: Path, *options: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # as many threads as the tests use
    command = [sys.executable, "-m", "egm.cli", "train", *OPTIONS, *options, "--out", str(folder)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def wait_for_steps(folder: Path, process: subprocess.Popen, least: int) -> None:
    for _ in range(1200):
        if len(RunDirectory(folder).read_metrics()) >= least:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    pytest.fail("the run did not begin within a minute")


def lines(folder: Path) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in RunDirectory(folder).read_metrics()]


@pytest.mark.slow
def test_a_killed_run_resumes_bit_by_bit(tmp_path):
    steps, whole, killed = 300, tmp_path / "whole", tmp_path / "killed"
    process = start(killed, "--steps", str(steps))
    wait_for_steps(killed, process, 40)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    interrupted_at = torch.load(killed / "checkpoint.pt", weights_only=True)["step"]
    assert 7 <= interrupted_at < steps
    assert interrupted_at % 7 == 0

    assert main(["train", "--resume", str(killed), "--evaluate", "false", "--progress", "false"]) == 0
    assert main(["train", *OPTIONS, "--steps", str(steps), "--out", str(whole)]) == 0
    assert len(lines(whole)) == steps + steps // 16 + 1
    assert lines(killed) == lines(whole)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    late = ["--checkpoint_every", "0", "--steps", "30"]
    assert main(["train", *OPTIONS, *late, "--out", str(whole)]) == 0
    assert main(["train", *OPTIONS, *late, "--out", str(killed)]) == 0
    for name in ("checkpoint.pt", "model.safetensors"):  # what SIGKILL would leave: a configuration and some metrics
        (killed / name).unlink()
    assert main(["train", "--resume", str(killed), "--evaluate", "false", "--progress", "false"]) == 0
    assert lines(killed) == lines(whole)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, number, code):
    folder = tmp_path / "a run"
    process = start(folder, "--steps", "1000000", "--checkpoint_every", "0")
    wait_for_steps(folder, process, 10)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"egm train --resume '{folder}'" in error
    assert "Traceback" not in error
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)["step"]
    assert 9 <= saved < 1_000_000
    extended = ["--steps", str(saved + 3), "--evaluate", "false", "--progress", "false"]
    assert main(["train", "--resume", str(folder), *extended]) == 0
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["step"] == saved + 3
    steps = [int(row["step"]) for row in lines(folder) if row["sampler_loss"]]
    assert steps == sorted(set(steps))
    assert steps[-1] == saved + 3
