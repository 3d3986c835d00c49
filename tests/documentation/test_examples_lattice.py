"""The examples on lattices run, print a table, make a picture, and agree with exact answers within their error bars."""

import html
import math

import pytest
import torch

from support.stats import z_limit

pytest.importorskip("matplotlib", reason="the examples make pictures: pip install 'egm[report]'")
WIDEST = 0.1  # standard error of log Z; quick runs stay below it, one step of training does not


@pytest.fixture
def quick(run_example, tmp_path, capsys):
    """Runs an example with --quick; returns its functions, the result of main, and the printed lines."""

    def call(name, *labels):
        functions = run_example(name)
        found = functions["main"](["--quick", "--out", str(tmp_path / "pictures")])
        picture = (tmp_path / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
        for label in labels:
            assert label in html.unescape(picture)
        return functions, found, capsys.readouterr().out.splitlines()

    return call


def assert_log_z(found, exact):
    """Right within an error bar that is small; `found` is log Z and its standard error."""
    log_z, stderr = found
    assert stderr < WIDEST
    assert abs(log_z - exact) < z_limit() * stderr


@pytest.mark.slow
@pytest.mark.example("ising_phase_transition")
def test_ising_phase_transition(quick):
    functions, rows, printed = quick("ising_phase_transition", "β", "|m|", "Binder's U", "log Z − exact")
    assert len(printed) == len(rows) + 2 == 6
    for row in rows:
        assert_log_z(row["log_z"], row["exact"]["log_z"][0])
    deviations = functions["deviations"](rows)
    assert max(map(abs, deviations)) < z_limit(len(deviations))
    loop = {"steps": 1, "batch_size": 64, "refresh": 256, "inner_steps": 1}
    (untrained,) = functions["train"]([4], [0.45], 1000, "LatticeConv(width=8, depth=1)", **loop)
    with pytest.raises(AssertionError):
        assert_log_z(untrained["log_z"], untrained["exact"]["log_z"][0])


@pytest.mark.slow
@pytest.mark.example("spin_glass")
def test_spin_glass(quick):
    functions, found, printed = quick("spin_glass", "overlap |q|", "probability − exact")
    assert len(printed) == 3 + 1 + 5 + 1  # |q| = 1/9, 3/9, …, 1
    assert_log_z((found["draws"].log_z, found["draws"].log_z_stderr), found["target"].log_z)
    (exact, exact_stderr), (learned, stderr) = found["laws"]["exact"], found["laws"]["learned"]
    z = (learned - exact) / (stderr.square() + exact_stderr.square()).sqrt()
    assert float(z.abs().max()) < z_limit(len(z))
    draws = functions["experiment"](3, steps=1, width=64, n=2000)["draws"]
    with pytest.raises(AssertionError):
        assert_log_z((draws.log_z, draws.log_z_stderr), found["target"].log_z)


@pytest.mark.slow
@pytest.mark.example("phi4_field")
def test_phi4_field(quick):
    functions, (row,), printed = quick("phi4_field", "distance d", "log Z − exact")
    assert len(printed) == 2
    assert_log_z(row["log_z"], row["exact_log_z"])
    mean, stderr = row["green"]
    assert float(((mean - row["exact"]) / stderr).abs().max()) < z_limit(3)
    loop = {"steps": 1, "batch_size": 128, "refresh": 256, "inner_steps": 1, "sample_steps": 20}
    (untrained,) = functions["train"]([1.0], "LatticeConv(width=16, depth=2)", n=2000, points=6, **loop)
    with pytest.raises(AssertionError):
        assert_log_z(untrained["log_z"], row["exact_log_z"])


@pytest.mark.example("phi4_field")
def test_exact_answers_of_the_field_are_those_of_a_gaussian_without_its_quartic_term(run_example):
    mass = 3.0
    log_z, green = run_example("phi4_field")["exact"](mass, 8, coupling=0.0)
    k = torch.arange(4, dtype=torch.float64) * math.pi / 2
    modes = mass + 4 - 2 * torch.cos(k)[:, None] - 2 * torch.cos(k)  # of m² − Δ
    assert log_z == pytest.approx(8 * math.log(2 * math.pi) - 0.5 * float(modes.log().sum()), abs=1e-6)
    waves = [float((torch.cos(k * d) / modes).mean()) for d in range(3)]
    assert green.tolist() == pytest.approx(waves, abs=1e-6)
