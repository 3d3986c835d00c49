"""Bootstrapping is there to raise the effective sample size of the estimator (the paper's figure of ESS over training).

The paper shows 10 × 10 at β = 0.4; 5 × 5 shows it within seconds.
"""

import statistics
from typing import Any

import pytest

import egm
from egm.runs.directory import RunDirectory

# One network, batch and number of proposals for both methods.
SAME: dict[str, Any] = {
    **{"network": "MLP(width=64)", "batch_size": 32, "proposals": 128},
    **{"refresh": 200, "buffer": 1000, "inner_steps": 50, "log_every": 10, "device": "cpu", "progress": False},
}


@pytest.mark.slow
def test_bootstrapped_weights_are_more_even(tmp_path):
    """Mean ESS over the second half of 200 steps, seeds 0 and 1: EGM .181, .205; EGM-BS .533, .559.

    A constant E^φ has even weights as well, so E^φ must have learned meanwhile: its loss falls from .590 to .118 (.353
    to .058), and stays at .533 (.393) if it is not trained.
    """
    ess, losses = {}, []
    for method, energy_network in (("egm", None), ("egm-bs", "MLP(width=64)")):
        given = {**SAME, "energy_network": energy_network, "out": tmp_path / method}
        egm.fit(egm.targets.Ising(5, 0.4), method, steps=200, seed=0, **given)
        rows = RunDirectory(tmp_path / method).read_metrics()
        assert len(rows) == 20
        ess[method] = [float(row["ess"]) for row in rows[10:]]
        losses = [float(row["energy_loss"]) for row in rows if "energy_loss" in row]
    assert statistics.mean(ess["egm-bs"]) > 2.5 * statistics.mean(ess["egm"])
    assert min(ess["egm-bs"]) > 2 * max(ess["egm"])
    assert max(ess["egm-bs"]) < 1
    assert statistics.mean(losses[10:]) < 0.5 * losses[0]
