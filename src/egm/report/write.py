"""Writes a report about run folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from egm.report.contents import Contents, read_contents
from egm.report.markup import Html, element, page
from egm.report.plotting import library
from egm.report.sections import comparison, run_sections
from egm.runs.directory import RunDirectory
from egm.targets.base import Target
from egm.util.files import replacing

N, SEED = 2000, 10_000  # of the draws; neither training nor evaluation has this seed by default


def write_report(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    target: Target | None = None,
    n: int = N,
    seed: int = SEED,
    device: str = "cpu",
    reference: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write a report about runs and return its path.

    Args:
        runs: folders that `egm.fit(out=...)` or `egm train` wrote.
        out: file to write; by default report.html in the folder of a single run, or in the current folder for several.
        target: target of the runs whose target is not a built-in one; without it, the parts that need the energy are
            left out.
        n: number of draws.
        seed: seed of the draws.
        device: device of the draws.
        reference: whether to compare with reference draws; if they come from MCMC, the first comparison may take long.
        say: called with progress messages.
    """
    folders = list(dict.fromkeys(Path(run) for run in runs))
    if not folders:
        raise ValueError("a report needs at least one run")
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    own = [folder for folder in folders if ":" in str(RunDirectory(folder).read_config()["target"])]
    if target is not None and not own:
        raise ValueError(f"the target {target!r} is not needed: every run is of a built-in one; leave it out")
    library()  # raises before the work if matplotlib is missing
    contents = [
        read_contents(
            folder, target if folder in own else None, n=n, seed=seed, device=device, reference=reference, say=say
        )
        for folder in folders
    ]
    file = Path(out) if out is not None else folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    with replacing(file) as stream:
        stream.write(render(contents, say).encode())
    return file


def render(runs: Sequence[Contents], say: Callable[[str], None]) -> Html:
    """Return the page about runs."""
    sections = []
    for run in runs:
        say(f"drawing figures of {run.name}")
        sections.append(run_sections(run))
    if len(runs) == 1:
        run = runs[0]
        return page(run.title, element("h1", run.title), element("p", run.name, class_="note"), sections[0])
    title = f"Comparison of {len(runs)} runs"
    each = (
        element("article", element("h2", f"{run.name}: {run.title}"), section, id=f"run-{i}")
        for i, (run, section) in enumerate(zip(runs, sections, strict=True), 1)
    )
    return page(title, element("h1", title), comparison(runs), *each)
