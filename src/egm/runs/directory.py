"""The files of a run on disk. A file is replaced atomically: written to a temporary file, then renamed.

config.yaml         everything that defines the run
environment.json    versions, commit, hardware, command, of each start
metrics.csv         one line for each entry of the log
checkpoint.pt       state of the trainer: networks, optimiser, averages, buffer, random state, counters
model.safetensors   the network of the sampler, or the states that chains have visited
results.json        the last evaluation, one object as in results/*.json
status.json         whether the run is in progress; tensorboard/ has its curves, on request (`egm.train.watching`)
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from egm.runs.environment import environment
from egm.util.files import replacing, write_json


class RunDirectory:
    """Reads and writes the files of one run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.folder)!r})"

    # ------------------------------------------------------------------ the definition of the run

    def create(self, config: dict[str, Any]) -> None:
        """Starts a run; raises if the folder already holds one."""
        if (self.folder / "config.yaml").exists():
            raise FileExistsError(
                f"{self.folder} holds a run already; continue it with `egm train --resume {self.folder}`"
                " (egm.resume in Python), or choose another folder"
            )
        self.write_config(config)
        self.record_start()

    def write_config(self, config: dict[str, Any]) -> None:
        """Writes `config.yaml`."""
        self._write("config.yaml", _yaml().safe_dump(config, sort_keys=False, allow_unicode=True, width=100).encode())

    def read_config(self) -> dict[str, Any]:
        """Returns the contents of `config.yaml`."""
        file = self.folder / "config.yaml"
        if not file.is_file():
            raise FileNotFoundError(f"{self.folder} is not a run: it has no config.yaml")
        config = _yaml().safe_load(file.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"{file} does not hold a configuration; expected a mapping")
        return config

    def record_start(self) -> None:
        """Adds this start to `environment.json`."""
        self._write("environment.json", json.dumps([*self.starts(), environment()], indent=1).encode())

    def record_peak(self, gib: float) -> None:
        """Adds the peak GPU memory of training to the last start in `environment.json`."""
        *earlier, last = self.starts()
        self._write("environment.json", json.dumps([*earlier, {**last, "peak_memory_gib": gib}], indent=1).encode())

    def starts(self) -> list[dict[str, Any]]:
        """Returns the environment of each start of the run, resumptions included."""
        file = self.folder / "environment.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []

    def last_start(self) -> dict[str, Any]:
        """Returns the last of `starts`, or an empty dict."""
        return next(reversed(self.starts()), {})

    # ------------------------------------------------------------------ progress

    def save(self, state: dict[str, Any], config: dict[str, Any], modules: Mapping[str, nn.Module]) -> None:
        """Writes the trainer's state, and then the sampler."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self._write("checkpoint.pt", buffer.getvalue())
        self.save_sampler(config, modules)

    def read_state(self, device: torch.device | str) -> dict[str, Any] | None:
        """Returns the trainer's state, or None if there is no checkpoint yet."""
        file = self.folder / "checkpoint.pt"
        return torch.load(file, map_location=device, weights_only=True) if file.is_file() else None

    def save_sampler(self, config: dict[str, Any], modules: Mapping[str, nn.Module]) -> None:
        """Writes the modules of the sampler, and the configuration that rebuilds it."""
        self._save_tensors(config, {part: module.state_dict() for part, module in modules.items()})

    def save_states(self, config: dict[str, Any], visited: Mapping[str, Tensor]) -> None:
        """Writes the states that chains have visited, and the configuration that rebuilds the sampler."""
        self._save_tensors(config, {"visited": visited})

    def _save_tensors(self, config: dict[str, Any], parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        tensors = {
            f"{part}.{name}": x.detach().cpu().contiguous()
            for part, named in parts.items()
            for name, x in named.items()
        }
        self.write_config(config)
        self._write("model.safetensors", _safetensors().save(tensors))

    def read_sampler(self) -> dict[str, dict[str, Tensor]]:
        """Returns the tensors of each module from `save_sampler`, or the visited states from `save_states`."""
        file = self.folder / "model.safetensors"
        if not file.is_file():
            raise FileNotFoundError(f"{self.folder} holds no trained network (model.safetensors); train it further")
        parts: dict[str, dict[str, Tensor]] = {}
        for key, tensor in _safetensors().load(file.read_bytes()).items():
            part, _, name = key.partition(".")
            parts.setdefault(part, {})[name] = tensor
        return parts

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Adds a line to `metrics.csv` and flushes it; a new column rewrites the file."""
        file = self.folder / "metrics.csv"
        columns = self._metrics_columns()
        if set(row) <= set(columns):
            with file.open("a", newline="", encoding="utf-8") as stream:
                csv.DictWriter(stream, columns).writerow(row)
                stream.flush()
                os.fsync(stream.fileno())
            return
        self._write_metrics([*columns, *(name for name in row if name not in columns)], [*self.read_metrics(), row])

    def _metrics_columns(self) -> list[str]:
        file = self.folder / "metrics.csv"
        if not file.is_file():
            return []
        with file.open(newline="", encoding="utf-8") as stream:
            return next(csv.reader(stream), [])

    def read_metrics(self) -> list[dict[str, str]]:
        """Returns the lines of `metrics.csv`, without a line that a crash cut short."""
        file = self.folder / "metrics.csv"
        if not file.is_file():
            return []
        with file.open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(line for line in stream if line.endswith("\n")))

    def forget_metrics_after(self, step: int) -> None:
        """Drops lines after a checkpoint's step, and the evaluation at that step: a resumed run writes them again."""
        rows, columns = self.read_metrics(), self._metrics_columns()
        kept = [row for row in rows if int(row["step"]) < step or (int(row["step"]) == step and not _scored(row))]
        if columns:
            self._write_metrics(columns, kept)

    def cost(self, config: Mapping[str, Any]) -> dict[str, float | int | None]:
        """Returns the seconds, steps and calls of training or of chains; None for values not known yet."""
        trained = [row for row in self.read_metrics() if not _scored(row)]
        spent = config.get("outcome") or (trained[-1] if trained else {})
        return {name: _number(spent.get(name)) for name in ("seconds", "step", "energy_calls", "score_calls")}

    def read_results(self) -> dict[str, Any] | None:
        """Returns the contents of `results.json`, or None if the run was not evaluated."""
        file = self.folder / "results.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    def write_results(self, record: dict[str, Any]) -> None:
        """Writes `results.json`."""
        write_json(self.folder / "results.json", record)

    def _write_metrics(self, columns: list[str], rows: list[dict[str, Any]]) -> None:
        stream = io.StringIO(newline="")
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)
        self._write("metrics.csv", stream.getvalue().encode())

    def _write(self, name: str, content: bytes) -> None:
        with replacing(self.folder / name) as stream:
            stream.write(content)


def _number(text: str | float | None) -> float | int | None:
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        return text
    return int(text) if text.isdigit() else float(text)


def _yaml() -> Any:
    try:
        import yaml  # noqa: PLC0415  (only runs on disk need it)
    except ImportError:
        raise ImportError("saving and loading runs needs PyYAML; install it with: pip install pyyaml") from None
    return yaml


def _safetensors() -> Any:
    try:
        import safetensors.torch  # noqa: PLC0415  (only runs on disk need it)
    except ImportError:
        raise ImportError("saving and loading runs needs safetensors; pip install safetensors") from None
    return safetensors.torch


def _scored(row: Mapping[str, str]) -> bool:
    """Returns whether a line is from an evaluation (`egm.evaluation.scores.quick_scores`), not from training."""
    return bool(row.get("e_w1"))
