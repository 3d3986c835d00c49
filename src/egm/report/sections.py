"""Builds the sections of a report in their order, from the verdict to the details."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from egm.draws.draws import UNSEEN
from egm.metrics.metrics import LABELS
from egm.report.contents import Contents
from egm.report.markup import Cell, Html, Number, count, element, joined, prose, table
from egm.report.panels import histograms, metric_figure, training_figures, weight_figures
from egm.report.plotting import figures
from egm.report.samples import sample_figures, symbol_table

MOST_LINES = 24  # of observables
PUBLISHED_OF = {"egm-sp": "published (egm-bs)"}  # EGM-SP is not in the paper; it is compared with EGM-BS


def run_sections(run: Contents) -> Html:
    """Return all sections about one run."""
    shown, hidden = histograms(run)
    not_shown = f"{hidden} more entries are not shown." if hidden else None
    parts = [
        verdict(run),
        *(element("p", prose(remark), class_="note") for remark in run.remarks),
        _section("Metrics", _metrics(run), _certificate(run), _chains(run), _observables(run)),
        _section("Energy and observables", figures(shown), _note(not_shown)),
        _section("Samples", figures(sample_figures(run)), symbol_table(run), _note(_as_drawn(run))),
        _section("Weights", figures(weight_figures(run))),
        _section("Training", figures(training_figures(run))),
        _section("Cost", _cost(run)),
        _section("Configuration", _configuration(run)),
        _section("Environment", _environment(run)),
    ]
    return joined(parts)


def verdict(run: Contents) -> Html:
    """Return the verdict: no problem detected, or unreliable with reasons."""
    if run.problems is None or run.draws is None:
        return element("div", element("strong", "Not judged."), " There are no draws.", class_="verdict")
    n = len(run.draws)
    if not run.problems:
        blind = run.draws.eubo is None or run.draws.groups > 1
        caveat = f" Without exact draws, {UNSEEN}." if blind else ""
        text = f" {n} fresh draws were checked.{caveat}"
        return element("div", element("strong", "No problem detected."), text, class_="verdict good")
    reasons = element("ul", *(element("li", problem) for problem in run.problems))
    return element("div", element("strong", "Unreliable, because"), reasons, class_="verdict bad")


def comparison(runs: Sequence[Contents]) -> Html:
    """Return a table of several runs, each with a link to its sections, `#run-1` and so on."""
    metrics = list(dict.fromkeys(name for run in runs for name in (run.results or {}).get("metrics") or {}))
    columns = ["run", "target", "method", "seed", "verdict", "ESS", "log Z"]
    for name in metrics:
        columns += [LABELS.get(name, name), f"{LABELS.get(name, name)}, floor"]
    columns += ["steps", "seconds", "energy calls", "gradient calls", "hardware"]
    rows = []
    for i, run in enumerate(runs, 1):
        config, draws = run.config, run.draws if run.log_weights is not None else None
        word = "not judged" if run.problems is None else "unreliable" if run.problems else "no problem detected"
        row: list[Cell] = [element("a", run.name, href=f"#run-{i}"), run.target_name, str(config["method"])]
        row += [_text(config.get("seed")), word, _number(draws.ess) if draws is not None else ""]
        row += [_with_error(draws.log_z, draws.log_z_stderr) if draws is not None else ""]
        for name in metrics:
            score = ((run.results or {}).get("metrics") or {}).get(name)
            row += [_with_error(score["mean"], score["std"]), _number(score["floor"])] if score else ["", ""]
        row += [_count(run.cost["step"]), _number(run.cost["seconds"])]
        row += [_count(run.cost["energy_calls"]), _count(run.cost["score_calls"]), _hardware(run)]
        rows.append(row)
    return table(columns, rows, label="Comparison of the runs")


def _section(title: str, *parts: str | None) -> Html:
    """Return a heading and its parts, or a note if there are no parts."""
    shown = [part for part in parts if part is not None]
    return element("section", element("h3", title), *(shown or [element("p", "Nothing to show.", class_="note")]))


def _note(text: str | None) -> Html | None:
    return None if text is None else element("p", text, class_="note")


def _as_drawn(run: Contents) -> str | None:
    return None if run.log_weights is None else "Draws are shown as they were drawn, before weighting."


# ---------------------------------------------------------------------- numbers


def _metrics(run: Contents) -> Html | None:
    results = run.results or {}
    scores, resampled = results.get("metrics") or {}, results.get("resampled") or {}
    if not scores:
        return None
    paper = (run.config.get("notes") or {}).get("paper") or {}
    columns = ["metric", "draws", *(["resampled"] if resampled else []), "floor", "draws / floor"]
    columns += [PUBLISHED_OF.get(run.config["method"], "published")] if paper else []
    rows = []
    for name, score in scores.items():
        again = [_with_error(resampled[name]["mean"], resampled[name]["std"])] if resampled else []
        ratio = score["mean"] / score["floor"] if score["mean"] is not None and score["floor"] else None
        row = [LABELS.get(name, name), _with_error(score["mean"], score["std"]), *again]
        row += [_number(score["floor"]), _number(ratio)]
        rows.append([*row, *([_with_error(*paper[name]) if name in paper else ""] if paper else [])])
    text = (
        f"Distances to reference draws, mean ± standard deviation over {results.get('repeats')} comparisons of"
        f" {results.get('n')} draws on either side; the floor is the distance of exact draws."
    )
    figure = metric_figure(run)
    return joined([element("p", text), table(columns, rows, label="Metrics"), figures([figure] if figure else [])])


def _certificate(run: Contents) -> Html | None:
    """Return the estimates from the weights."""
    draws = run.draws
    if draws is None or run.log_weights is None:
        return None
    exact = None if run.target is None else run.target.log_z
    rows: list[list[Cell]] = [
        ["ESS (share of the draws)", _number(draws.ess)],
        ["effective draws", _count(round(draws.ess * len(draws)))],
        ["log Z", _with_error(draws.log_z, draws.log_z_stderr)],
        *([["log Z, exactly", _number(exact, 6)]] if exact is not None else []),
        ["ELBO", _number(draws.elbo, 6)],
        *([["EUBO", _with_error(draws.eubo, draws.eubo_stderr)]] if draws.eubo is not None else []),
        ["Pareto k̂", _number(draws.pareto_k) if math.isfinite(draws.pareto_k) else "not estimated"],
    ]
    return joined(
        [
            element("p", f"From the weights of {len(draws)} fresh draws, with standard errors:"),
            table(["quantity", "value"], rows, label="Estimates from the weights"),
        ]
    )


def _is_chain(run: Contents) -> bool:
    return bool(run.config.get("outcome"))


def _chains(run: Contents) -> Html | None:
    """Return the diagnostics of Markov chains, which have no weights."""
    if not _is_chain(run):
        return None
    outcome = run.config["outcome"]
    rows: list[list[Cell]] = [
        [name, _with_error(d.get("mean"), d.get("stderr")), _number(d.get("r_hat"), 4), _number(d.get("ess"))]
        for name, d in (outcome.get("diagnostics") or {}).items()
    ]
    text = (
        f"{_text(outcome.get('kept'))} states of {_text(outcome.get('kernel'))} were kept, after"
        f" {_text(outcome.get('warmup'))} steps of warm-up. Standard errors account for their dependence; R-hat is near"
        " 1 if chains agree."
    )
    columns = ["quantity", "mean", "R-hat", "effective states"]
    return joined([element("p", text), table(columns, rows, label="Diagnostics of the chains")])


def _observables(run: Contents) -> Html | None:
    """Return the means of draws and reference draws, as the evaluation recorded them."""
    rows: list[list[Cell]] = []
    for name, found in ((run.results or {}).get("observables") or {}).items():
        none = [None] * len(found["mean"])
        errors = found["stderr"] or none, found.get("reference_stderr") or none
        for i, parts in enumerate(zip(found["mean"], errors[0], found["reference"], errors[1], strict=True)):
            label = name if len(none) == 1 else f"{name}[{i}]"
            rows.append([label, _with_error(*parts[:2]), _with_error(*parts[2:])])
    if not rows:
        return None
    hidden = f" The first {MOST_LINES} of {len(rows)} are shown." if len(rows) > MOST_LINES else ""
    text = f"Means of observables in the last evaluation (weighted where there are weights) ± standard error.{hidden}"
    text += " States of chains depend on each other: their errors are in the table above." if _is_chain(run) else ""
    columns = ["observable", "draws", "reference"]
    return joined([element("p", text), table(columns, rows[:MOST_LINES], label="Means of observables")])


def _cost(run: Contents) -> Html:
    cost, notes = run.cost, run.config.get("notes") or {}
    rows: list[list[Cell]] = [
        ["steps", _count(cost["step"])],
        ["seconds", _number(cost["seconds"])],
        ["energy calls", _count(cost["energy_calls"])],
        ["gradient calls", _count(cost["score_calls"])],
        ["hardware", _hardware(run)],
        ["runs that shared the hardware", str(notes.get("concurrent", 1))],
    ]
    memory = run.starts[-1].get("peak_memory_gib") if run.starts else None
    rows += [["GPU memory, GiB", _number(memory)]] if memory is not None else []
    rows += [["energy calls of the draws above", _count(run.draws.energy_calls)]] if run.draws is not None else []
    return table(["training", "cost"], rows, label="Cost")


def _configuration(run: Contents) -> Html:
    rows = [[name, value] for name, value in _flat(run.config)]
    return table(["option", "value"], rows, label="Configuration")


def _environment(run: Contents) -> Html | None:
    if not run.starts:
        return None
    names = list(dict.fromkeys(name for start in run.starts for name in start))
    columns = (
        ["item", "start"] if len(run.starts) == 1 else ["item", *(f"start {i}" for i in range(1, len(run.starts) + 1))]
    )
    rows = [[name, *(_text(start.get(name)) for start in run.starts)] for name in names]
    return table(columns, rows, label="Environment of every start of the run")


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return options by name; names of nested options contain dots."""
    found: list[tuple[str, str]] = []
    for name, value in config.items():
        inner = isinstance(value, Mapping) and value
        found += _flat(value, f"{prefix}{name}.") if inner else [(f"{prefix}{name}", _text(value))]
    return found


def _text(value: Any) -> str:
    if value is None or value in ([], {}):
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _hardware(run: Contents) -> str:
    return str(run.starts[-1].get("hardware") or "") if run.starts else ""


def _number(value: float | None, digits: int = 3) -> Cell:
    return "" if value is None else Number(f"{value:.{digits}g}", value)


def _with_error(value: float | None, error: float | None) -> Cell:
    """Return a value ± its error, with as many decimals as the error's second digit needs."""
    if value is None:
        return ""
    if error is None or not math.isfinite(error) or error <= 0:
        return Number(f"{value:.4g}", value)
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return Number(f"{value:.{decimals}f} ± {error:.{decimals}f}", value)


def _count(value: float | None) -> Cell:
    return "" if value is None else Number(count(value), value)
