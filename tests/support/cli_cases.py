"""Small settings for the tests of the command line, and a module with user-defined energies."""

import json
from pathlib import Path

import yaml

ISING = ["ising", "--target.size", "3", "--target.beta", "0.4"]
TINY = [
    *("--batch_size", "8", "--proposals", "4", "--refresh", "16", "--sample_steps", "4"),
    *("--network", "MLP(width=8)", "--progress", "false", "--device", "cpu"),
]
#: the same for EGM-SP, which has none of the options of EGM
TINY_SP = [
    *("--batch_size", "8", "--refresh", "16", "--sample_steps", "4"),
    *("--network", "MLP(width=8)", "--progress", "false", "--device", "cpu"),
]
OWN = """
import egm


def make_target():
    return egm.Target(egm.Space(x=egm.Real(2)), lambda x: 0.5 * x.square().sum(-1))


target = make_target()


def late_nan():
    calls = []

    def energy(x):
        calls.append(len(x))
        value = 0.5 * x.square().sum(-1)
        return value if len(calls) < 20 else value * float("nan")

    return egm.Target(egm.Space(x=egm.Real(2)), energy)


def not_a_target():
    return 3
"""


def config_of(run) -> dict:
    return yaml.safe_load((Path(run) / "config.yaml").read_text(encoding="utf-8"))


def results_of(run) -> dict:
    return json.loads((Path(run) / "results.json").read_text(encoding="utf-8"))
