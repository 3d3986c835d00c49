"""Figures: the data kept of draws, and the drawings of that data."""

import json
import math
import sys

import numpy as np
import pytest
import torch

from egm.report.plotting import BINS, bin_edges
from egm.reproduce import figure_data, figures
from egm.targets import GBRBM, JointMoG
from support.reproduce_cases import record, write_records


def entry(**changes):
    base = {key: value for key, value in record().items() if key in ("target", "recipe", "role", "seed")}
    counts = {"edges": [0.0, 1.0, 2.0], "draws": [3, 1], "reference": [2, 2]}
    return {
        **base, "label": "egm", "n": 4, "commit": "0", "energy": counts, "magnetization": counts,
        "correlation": {"draws": [1.0, 0.4], "reference": [1.0, 0.5]},
        "series": {"step": [1, 2], "seconds": [1.0, 2.0], "energy_calls": [10, 20], "ess": [0.1, 0.6]}, **changes,
    }  # fmt: skip


def mixed(target, recipe):
    points = np.random.default_rng(0).normal(size=(50, 2)).tolist()
    made = entry(target=target, recipe=recipe, points=points)
    return {key: value for key, value in made.items() if key not in ("magnetization", "correlation")}


def test_every_figure_is_drawn_from_records_alone(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    results = tmp_path / "results"
    results.mkdir()
    entries = [entry(), entry(label="egm-bs", energy={**entry()["energy"], "draws": [0, 4]})]
    entries += [mixed("GBRBM()", "fast/gbrbm"), mixed("JointMoG()", "fast/jointmog")]
    (results / "figures.json").write_text(json.dumps(entries), encoding="utf-8")
    changed = {"role": "ablation", "method": "egm-bs"}
    sweep = [record(s, 1 / e, overrides={"epsilon": e}, **changed) for e in (0.01, 0.1, 0.5) for s in (0, 1)]
    write_records(results, "epsilon", sweep)
    averages = [record(0, 1.0, recipe="fast/ising10-b04", overrides=o, **changed) for o in ({}, {"energy_ema": 0.0})]
    write_records(results, "ema", averages)
    written = figures.draw_all(results, tmp_path / "docs" / "figures")
    assert [file.stem for file in written] == [
        *("energy", "magnetization", "gbrbm", "jointmog", "correlation", "ess", "epsilon", "ema"),
    ]
    for file in written:
        text = file.read_text(encoding="utf-8")
        assert "<svg" in text
        assert len(text) < 200_000
    assert "egm-bs" in written[0].read_text(encoding="utf-8")
    assert "nothing to draw" not in capsys.readouterr().out


def test_the_same_records_give_the_same_file_and_other_roles_none(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    kept = {key: value for key, value in entry().items() if key not in ("magnetization", "correlation", "series")}
    (tmp_path / "figures.json").write_text(json.dumps([kept]), encoding="utf-8")
    (one,), (two,) = (figures.draw_all(tmp_path, tmp_path / name) for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    capsys.readouterr()
    assert figures.draw_all(tmp_path, tmp_path / "smoke", role="smoke") == []
    assert "nothing to draw for energy" in capsys.readouterr().out


def test_without_matplotlib_the_fix_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"drawing figures needs matplotlib: pip install 'egm\[report\]'"):
        figures.draw_all(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("target", "density", "reach"),
    [(GBRBM(), figures._gbrbm_density, 12.0), (JointMoG(), figures._jointmog_density, 4.0)],
)
def test_contours_are_of_the_exact_marginal_density(target, density, reach):
    """It integrates to one, and its mean square is that of exact draws."""
    grid = np.linspace(-reach, reach, 400)
    first, second = np.meshgrid(grid, grid)
    values, area = density(target, first, second), (grid[1] - grid[0]) ** 2
    assert values.sum() * area == pytest.approx(1, abs=1e-4)
    draws = target.exact_sample(20_000, seed=0)
    x = next(draws[name] for name in target.space.real)[:, :2].double()
    squares = x.square().sum(-1)
    expected = float((values * (first**2 + second**2)).sum() * area)
    assert float(squares.mean()) == pytest.approx(expected, abs=4 * float(squares.std()) / math.sqrt(len(x)))


def test_histograms_of_lattices_have_a_bin_for_each_value():
    reference = np.repeat([-4.0, -2.0, 0.0, 2.0], 5).astype(np.float32)
    shown = figure_data._histogram(np.array([-2.0, -2.0, 9.0]), reference)
    assert shown["edges"] == [-5.0, -3.0, -1.0, 1.0, 3.0]
    assert shown["reference"] == [5, 5, 5, 5]
    assert shown["draws"] == [0, 2, 0, 1]  # what lies outside is in the last bin


@pytest.mark.parametrize(("points", "each"), [(30, 1), (80, 1), (81, 3), (400, 10)])
def test_bins_of_a_large_lattice_hold_equally_many_of_its_values(points, each):
    """Float32 sums in several orders, as energies are: β times an even number."""
    values = (np.float32(0.28) * np.arange(points, dtype=np.float32) * 4).astype(np.float64)
    values = np.concatenate([values, np.nextafter(values.astype(np.float32), np.float32(np.inf)).astype(np.float64)])
    counts, _ = np.histogram(values, bin_edges(values))
    assert set(counts[:-1]) == {2 * each}
    assert counts.sum() == 2 * points
    assert len(counts) <= 2 * BINS


@pytest.mark.parametrize("far", [10.0, 1e5])
def test_an_outlier_makes_no_grid_of_real_values(far):
    values = np.append(np.random.default_rng(0).normal(size=2000), far)
    assert len(bin_edges(values)) == BINS + 1
    assert len(bin_edges(np.linspace(0, 1, 2_000_001))) == BINS + 1


def test_a_label_has_one_colour_and_a_target_its_name_in_the_tables():
    pytest.importorskip("matplotlib")
    entries = [entry(label="egm-sp"), entry(), entry(label="egm-sp", target="DW4()", recipe="fast/dw4")]
    figure = figures._histograms(entries, "energy")
    assert [axis.get_title() for axis in figure.axes] == ["Ising 5 × 5, β = 0.4", "DW4"]
    lines = [dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True)) for axis in figure.axes]
    assert list(lines[0]) == ["reference", "egm", "egm-sp"]
    assert lines[0]["egm-sp"].get_edgecolor() == lines[1]["egm-sp"].get_edgecolor() != lines[0]["egm"].get_edgecolor()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["reference", "egm", "egm-sp"]


def test_histograms_of_real_energies():
    draws, reference = (torch.randn(500, generator=torch.Generator().manual_seed(s)).numpy() for s in (0, 1))
    shown = figure_data._histogram(draws, reference)
    assert len(shown["edges"]) == BINS + 1
    assert sum(shown["draws"]) == sum(shown["reference"]) == 500


def test_the_smallest_seed_is_kept(tmp_path):
    file = tmp_path / "figures.json"
    for seed in (2, 1, 3):
        figure_data.merge(file, entry(seed=seed))
    figure_data.merge(file, entry(seed=5, label="egm-bs"))
    assert sorted((e["label"], e["seed"]) for e in figure_data.read(file)) == [("egm", 1), ("egm-bs", 5)]
    figure_data.merge(file, entry(seed=1, commit="newer"))
    assert [e["commit"] for e in figure_data.read(file) if e["label"] == "egm"] == ["newer"]
