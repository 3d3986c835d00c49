"""From run folders to the file."""

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

N, SEED = 2000, 10_000  # of the draws; a seed that neither training nor evaluation has by default


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
        out: the file; by default report.html in the folder of a single run, or here for several.
        target: the energy of those runs whose target is not a built-in one; without it, what needs the energy is left
            out.
        n: draws to look at.
        seed: of these draws.
        device: where to draw.
        reference: compare with reference draws; where these come from MCMC, making them may take long once.
        say: is told what is going on.
    """
    folders = list(dict.fromkeys(Path(run) for run in runs))
    if not folders:
        raise ValueError("a report needs at least one run")
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    own = [folder for folder in folders if ":" in str(RunDirectory(folder).read_config()["target"])]
    if target is not None and not own:
        raise ValueError(f"the target {target!r} is not needed: every run is of a built-in one; leave it out")
    library()  # whatever is missing is better missed before the work
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
    """The page about runs."""
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
