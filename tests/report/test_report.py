"""Reports: complete for every kind of run, without links out of the file, and no text of a run is markup."""

import json
import math
import re
import shutil
import sys
from importlib import resources

import pytest
import yaml

import egm
from egm.cli.main import main
from egm.report import write_report
from support.report_cases import SECTIONS, TINY, Page, particles
from support.training import begin

pytest.importorskip("matplotlib")
N = 60


def read(file):
    return Page(file.read_text(encoding="utf-8"))


def check_page(page):
    """Asserts what holds for every report."""
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    leads = page.values("src", "href", "xlink:href", "action", "data", "poster", "srcset")
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in leads)
    assert {value[1:] for value in leads if value.startswith("#")} <= set(ids)
    styles = page.values("style")
    assert not any("http" in style or "url(" in style.replace("url(#", "") for style in styles)
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert len(page.all("script")) == 1
    assert all(image["alt"] for image in page.all("img"))
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert len(page.all("figcaption")) == len(page.all("figure"))


def test_a_lattice(runs, tmp_path):
    page = read(write_report([runs["ising"]], tmp_path / "a.html", n=N))
    check_page(page)
    headings = [text for text in page.texts if text in SECTIONS]
    assert headings == list(SECTIONS)
    assert "Unreliable, because" in page.texts  # 60 draws are too few for a certificate
    assert any(text.startswith("ESS ") and "independent draws" in text for text in page.texts)
    assert len(page.all("img")) == 2  # draws and reference
    told = " ".join(svg["aria-label"] or "" for svg in page.all("svg"))
    for what in ("Histogram of energy", "Histogram of magnetization", "log-weights", "Pareto plot", "ESS", "loss"):
        assert what in told
    assert "inverse temperature b" in told
    assert "reference" in told
    assert "not evaluated" in page.text
    for name in ("energy calls", "gradient calls", "seconds", "hardware", "batch_size", "torch", "commit"):
        assert name in page.texts


def test_metrics_come_from_the_evaluation(runs, tmp_path):
    run = shutil.copytree(runs["ising"], tmp_path / "run")
    assert main(["evaluate", str(run), "--n", "40", "--repeats", "2", "--floor_pairs", "2"]) == 0
    page = read(write_report([run], n=N))
    check_page(page)
    assert "published" not in page.text  # the run has no recipe
    record = json.loads((run / "results.json").read_text(encoding="utf-8"))
    score = record["metrics"]["e_w1"]
    shown = [float(value) for value in page.values("data-sort")]
    for value in (score["mean"], score["floor"], record["resampled"]["m_w1"]["mean"], score["mean"] / score["floor"]):
        assert value in shown
    assert any("Distances over floors" in (svg["aria-label"] or "") for svg in page.all("svg"))
    assert "2 comparisons of 40 draws" in page.text
    seen = record["observables"]["magnetization"]
    assert f"± {seen['stderr'][0]:.3f}" in page.text
    assert f"± {seen['reference_stderr'][0]:.3f}" in page.text
    assert "not evaluated" not in page.text


def test_published_numbers_are_named_after_their_method(runs, tmp_path):
    run = shutil.copytree(runs["mixed"], tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    config["notes"] = {"paper": {"e_w1": [0.2, 0.15]}}
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    score = {"mean": 1.0, "std": 0.1, "floor": 0.5, "floor_pairs": 2}
    (run / "results.json").write_text(json.dumps({"metrics": {"e_w1": score}}), encoding="utf-8")
    page = read(write_report([run], n=N))
    assert "published (egm-bs)" in page.texts  # the method of the run, EGM-SP, has no published numbers
    assert "0.20 ± 0.15" in page.texts


def test_a_mixed_target(runs, tmp_path):
    page = read(write_report([runs["mixed"]], tmp_path / "a.html", n=N))
    check_page(page)
    told = [svg["aria-label"] or "" for svg in page.all("svg")]
    assert any("v[0] and v[1] over contours of the target's density" in text for text in told)
    assert any(re.search(r"mode of .*: draws are in \d modes, reference in 6$", text) for text in told)
    for column in ("share of draws", "weighted share", "share of reference"):
        assert column in page.texts
    assert any(re.fullmatch(r"[01]{3}", text) for text in page.texts)  # states of the three hidden units


@pytest.mark.parametrize("dim", [2, 3])
def test_particles_of_ones_own(dim, tmp_path):
    target = particles(dim)
    egm.fit(target, out=tmp_path / "run", **TINY)
    page = read(write_report([tmp_path / "run"], target=target, n=N))
    check_page(page)
    told = " ".join(svg["aria-label"] or "" for svg in page.all("svg"))
    assert f"4 particles in {'the plane' if dim == 2 else 'space'}" in told
    assert "Histogram of energy" in told
    assert "no reference draws" in page.text


def test_without_its_target_what_needs_the_energy_is_left_out_and_said(runs, tmp_path):
    page = read(write_report([runs["particles"]], tmp_path / "a.html", n=N))
    check_page(page)
    told = " ".join(svg["aria-label"] or "" for svg in page.all("svg"))
    assert "particles in the plane" in told
    assert "Histogram of energy" not in told
    assert "Pareto" not in told
    assert "--target module:function" in page.text
    assert any("loaded without its target" in text for text in page.texts)  # the words of Draws.problems


def test_chains(runs, tmp_path):
    run = shutil.copytree(runs["chain"], tmp_path / "run")
    assert main(["evaluate", str(run), "--n", "40", "--repeats", "2", "--floor_pairs", "2"]) == 0
    page = read(write_report([run], n=N))
    check_page(page)
    assert "their errors are in the table above" in page.text
    assert any("states of Markov chains have none" in text for text in page.texts)
    told = " ".join(svg["aria-label"] or "" for svg in page.all("svg"))
    assert "over contours" in told
    assert "Pareto" not in told
    outcome = egm.load(runs["chain"]).config["outcome"]
    assert repr(outcome["diagnostics"]["energy"]["r_hat"]) in page.values("data-sort")


def test_chains_have_no_more_draws_than_states(runs, tmp_path):
    sampler = egm.load(runs["chain"])
    assert isinstance(sampler, egm.ChainSampler)
    kept = sampler.kept
    page = read(write_report([runs["chain"]], tmp_path / "a.html", n=10 * kept))
    assert f"{min(kept, 700)} draws of v[0]" in page.text


def test_several_runs_side_by_side(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *(str(runs[name]) for name in ("ising", "mixed", "chain", "ising")), "--n", str(N)]) == 0
    said = capsys.readouterr()
    assert "written to report.html" in said.out
    assert said.err.count("drawing 60 times") == 3  # once each
    page = read(tmp_path / "report.html")
    check_page(page)
    assert "Comparison of 3 runs" in page.texts
    assert [link["href"] for link in page.all("a")] == ["#run-1", "#run-2", "#run-3"]
    assert len(page.all("article")) == 3
    assert [text for text in page.texts if text in SECTIONS] == 3 * list(SECTIONS)
    assert page.texts.count("Unreliable, because") == page.texts.count("unreliable") == 3


def test_the_verdict_of_a_good_sampler(tmp_path):
    """A Gaussian is its own reference law, so an untrained sampler is nearly perfect."""
    target = egm.Target(egm.Space(x=egm.Real(2)), lambda x: 0.5 * x.square().sum(-1), name="Gaussian")
    egm.fit(target, out=tmp_path / "run", **{**TINY, "steps": 1, "sample_steps": 20})
    page = read(write_report([tmp_path / "run"], target=target, n=500))
    assert "No problem detected." in page.texts
    assert "cannot be detected from weights" in page.text  # there are no exact draws


def test_nothing_of_a_file_is_markup(tmp_path):
    hostile = '<img src=x onerror=alert(1)><script>alert("1")</script> & $\\frac{x$ \' "'
    target = particles(name=hostile)
    run = tmp_path / '<svg onload=alert(2)> $x^{ & "quoted"'
    begin(target, "egm-sp", out=run, notes={hostile: [hostile], "paper": {}}, **TINY)
    score = {"mean": 1.0, "std": 0.1, "floor": 0.5, "floor_pairs": 2}
    seen = {hostile: {"mean": [1.0], "stderr": [0.1], "reference": [2.0]}}
    record = {"metrics": {hostile: score}, "resampled": None, "observables": seen, "n": hostile, "repeats": hostile}
    (run / "results.json").write_text(json.dumps(record), encoding="utf-8")
    (run / "environment.json").write_text(json.dumps([{hostile: hostile, "hardware": hostile}]), encoding="utf-8")
    file = write_report([run, shutil.copytree(run, tmp_path / "other")], tmp_path / "a.html", target=target, n=N)
    page = read(file)
    check_page(page)
    assert page.all("img") == []
    assert sum(hostile in text for text in page.texts) > 10
    assert "$x^{" in page.text


def test_a_figure_that_fails_leaves_the_old_file(runs, tmp_path, monkeypatch):
    file = tmp_path / "report.html"
    file.write_text("old", encoding="utf-8")
    monkeypatch.setattr("egm.report.write.render", lambda runs, say: (_ for _ in ()).throw(ValueError("broken")))
    with pytest.raises(ValueError, match="broken"):
        write_report([runs["ising"]], file, n=4)
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_reports_are_small_and_the_same_again(runs, tmp_path):
    one, two = (write_report([runs["mixed"]], tmp_path / name, n=1000).read_bytes() for name in ("1.html", "2.html"))
    assert one == two
    assert len(one) < 1_500_000


def test_runs_that_cannot_draw_are_still_reported(runs, tmp_path):
    run = shutil.copytree(runs["ising"], tmp_path / "run")
    (run / "model.safetensors").unlink()
    page = read(write_report([run], n=N))
    check_page(page)
    assert "Not judged." in page.texts
    assert "no trained network yet" in page.text
    assert any("ESS in training" in (svg["aria-label"] or "") for svg in page.all("svg"))


def test_refusals(runs, tmp_path, capsys, monkeypatch):
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err
    with pytest.raises(ValueError, match="every run is of a built-in one"):
        write_report([runs["ising"]], target=particles())
    with pytest.raises(ValueError, match="at least one run"):
        write_report([])
    with pytest.raises(ValueError, match="the run was made for Springs"):
        write_report([runs["particles"]], tmp_path / "a.html", target=particles(name="Other"), n=N)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"drawing figures needs matplotlib: pip install 'egm\[report\]'"):
        write_report([runs["ising"]], tmp_path / "a.html")


def test_real_lattices_are_images(tmp_path):
    target = egm.Target(egm.Space(phi=egm.Real((4, 5))), lambda phi: 0.5 * phi.square().sum((-2, -1)))
    egm.fit(target, out=tmp_path / "run", **TINY)
    page = read(write_report([tmp_path / "run"], target=target, n=N))
    check_page(page)
    assert len(page.all("img")) == 1
    assert "draws of phi (4 × 5)" in page.text


def test_walls_and_zero_weights(tmp_path):
    """Energies of +inf are legal, and draws there have no place in a histogram."""

    def energy(x):
        inside = x.sum(-1) > -0.5
        return (0.5 * x.square().sum(-1)).masked_fill(~inside, math.inf)

    target = egm.Target(egm.Space(x=egm.Real(3)), energy)
    egm.fit(target, out=tmp_path / "run", **TINY)
    page = read(write_report([tmp_path / "run"], target=target, n=200))
    check_page(page)
    assert "draws of zero density are not shown" in page.text


def test_the_script_has_no_comment_that_would_hide_the_rest_of_its_line():
    """The script is written into a page as one line."""
    script = (resources.files("egm.report") / "page.js").read_text(encoding="utf-8")
    assert "//" not in script
