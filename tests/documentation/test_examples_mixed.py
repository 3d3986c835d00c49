"""Examples on mixed spaces: short runs end with a table that is right within its error bars, and with a picture."""

import re
import sys
from pathlib import Path

import pytest

import egm
from egm.util.extras import MissingPackage
from support.oracles import joint_dw4_compositions
from support.stats import z_limit

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^(.+?) +(-?\d+\.\d+) ± (\d+\.\d+) +(-?\d+\.\d+)(?: ± (\d+\.\d+))?$", re.MULTILINE)
ROUNDING = 1e-4  # of the tables
LARGEST_FILE = 200_000
# Error of log Z below which a sampler counts as trained: about half-way between the short runs and an untrained sampler
# (0.04 and 0.12, 0.02 and 0.05, 0.07 and 0.14, 0.06 and 0.28).
TRAINED = {"gbrbm": 0.07, "spike_slab": 0.033, "codesign": 0.1, "mixture": 0.12}
ROWS = {"gbrbm": 7, "spike_slab": 9, "codesign": 12, "mixture": 12}
EACH = pytest.mark.parametrize(
    "name",
    [
        pytest.param("gbrbm", marks=pytest.mark.example("gbrbm")),
        pytest.param("spike_slab", marks=pytest.mark.example("spike_slab")),
        pytest.param("codesign", marks=pytest.mark.example("codesign")),
        pytest.param("mixture", marks=pytest.mark.example("mixture")),
    ],
)

pytestmark = pytest.mark.slow


@pytest.fixture
def run(run_example, monkeypatch, capsys, tmp_path):
    """Runs an example; returns its table: for each row the estimate, its error, the exact value and its error."""

    def short(name):
        pytest.importorskip("matplotlib", reason="pictures need matplotlib: pip install 'egm[examples]'")
        if name == "spike_slab":
            pytest.importorskip(
                "sklearn", reason="the diabetes data set needs scikit-learn: pip install 'egm[examples]'"
            )
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick", "--out", str(tmp_path)])
        run_example(name, run_name="__main__")
        text = capsys.readouterr().out
        return {row[1].strip(): tuple(float(x or 0) for x in row.groups()[1:]) for row in ROW.finditer(text)}

    return short


def faults(name, rows) -> list[str]:
    """What is wrong with a table: a sampler that is not trained, or values farther off than their errors allow."""
    error = rows["log Z"][1]
    found = [] if error <= TRAINED[name] else [f"log Z ± {error}"]
    for label, (value, stderr, exact, exact_stderr) in rows.items():
        if abs(value - exact) > z_limit(len(rows)) * (stderr**2 + exact_stderr**2) ** 0.5 + ROUNDING:
            found.append(f"{label}: {value} ± {stderr}, exact {exact} ± {exact_stderr}")
    return found


def against_quadrature(rows) -> dict[str, tuple[float, ...]]:
    """Compositions by the sampler and by the chains that the example compares it with, next to their exact values."""
    compared, parts = {"log Z": rows["log Z"]}, joint_dw4_compositions()
    for share, name in zip(parts / parts.sum(), ("AAAA", "AAAB", "AABB", "ABBB", "BBBB"), strict=True):
        value, stderr, chains, chains_stderr = rows[f"p({name})"]
        compared |= {name: (value, stderr, share, 0.0), f"{name} by chains": (chains, chains_stderr, share, 0.0)}
    return compared


@EACH
def test_short_runs_are_right_and_draw_a_picture(run, tmp_path, name):
    rows = run(name)
    assert len(rows) == ROWS[name]
    assert faults(name, rows) == []
    if name == "codesign":
        assert faults(name, against_quadrature(rows)) == []
    picture = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    assert "<svg" in picture
    assert len(picture) < LARGEST_FILE


@EACH
def test_an_untrained_sampler_is_seen(run, monkeypatch, name):
    fit = egm.fit
    monkeypatch.setattr(egm, "fit", lambda *given, **options: fit(*given, **{**options, "steps": 1}))
    assert any(fault.startswith("log Z ±") for fault in faults(name, run(name)))


@pytest.mark.example("gbrbm")
def test_weights_of_other_draws_are_seen(run, monkeypatch):
    """Mixed-up weights change the probabilities of the modes, but neither log Z nor its error."""
    sample = egm.Sampler.sample

    def mixed_up(*given, **options):
        draws = sample(*given, **options)
        assert draws.log_weights is not None
        return egm.Draws(draws.space, draws.state, log_weights=draws.log_weights.flip(0))

    monkeypatch.setattr(egm.Sampler, "sample", mixed_up)
    found = faults("gbrbm", run("gbrbm"))
    assert found
    assert all(fault.startswith("mode at") for fault in found)


@pytest.mark.example("spike_slab")
def test_without_scikit_learn_the_fix_is_named(run_example, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setattr(sys, "argv", ["spike_slab.py", "--out", str(tmp_path)])
    with pytest.raises(
        MissingPackage, match=r"the diabetes data set needs scikit-learn: pip install 'egm\[examples\]'"
    ):
        run_example("spike_slab", run_name="__main__")


@pytest.mark.example("spike_slab")
@pytest.mark.parametrize("patients", [0, 5, 443])
def test_too_few_and_too_many_patients_are_refused(run_example, monkeypatch, tmp_path, patients):
    pytest.importorskip("sklearn", reason="the diabetes data set needs scikit-learn: pip install 'egm[examples]'")
    monkeypatch.setattr(sys, "argv", ["x", "--quick", "--patients", str(patients), "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=rf"--patients must be from 6 to 442, got {patients}"):
        run_example("spike_slab", run_name="__main__")
    target, _ = run_example("spike_slab")["diabetes"](442, 10)
    assert "X=<442x10 " in repr(target)


@pytest.mark.parametrize("name", list(ROWS))
def test_the_page_shows_the_committed_picture(name):
    folder = ROOT / "docs" / "examples"
    assert f"]({name}.svg)" in (folder / f"{name}.md").read_text(encoding="utf-8")
    assert (folder / f"{name}.svg").stat().st_size < LARGEST_FILE
