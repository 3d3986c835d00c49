"""Versions, commit, hardware and command of this process, which every run records."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch


def environment() -> dict[str, Any]:
    """Returns versions, commit, hardware and command of this process."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "platform": platform.platform(),
        "hardware": hardware("cuda" if torch.cuda.is_available() else "cpu"),
        "threads": torch.get_num_threads(),
        "commit": commit(),
        "command": shlex.join(sys.argv),
    }


def hardware(device: torch.device | str) -> str:
    """Returns the name of a device."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}, {torch.get_num_threads()} threads"


def commit() -> str | None:
    """Returns the commit of the source tree, with "+" if it was changed; $EGM_COMMIT without a git checkout."""
    here, stated = Path(__file__).parent, os.environ.get("EGM_COMMIT")
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=here, capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return stated
    return said.stdout.strip() or stated
