"""Makes the picture of the README: draws of three trained samplers, before and after weighting, and exact draws.

    python examples/picture.py docs/picture.png      # trains on one CPU core, some minutes; needs egm[report]

The draws of the second row are chosen in proportion to their weights from ten thousand. All random numbers are seeded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import egm
from egm.report.plotting import new_figure, plain_style
from egm.spaces import State
from egm.util.files import replacing

POINTS, LATTICES = 700, (5, 10)  # shown in a panel: points of a scatter, rows and columns of lattices
COLOURS = ("#1d5fb4", "#c2571a", "#2a8a57", "#8a4fb0", "#b3261e", "#008a8a", "#8a6100", "#5b6675")
SEED = 1  # of the draws


class Panel(NamedTuple):
    """A target, how it is trained, and how its states are shown."""

    title: str
    target: egm.Target
    options: dict[str, Any]
    show: Callable[[Any, State], None]


def symbols_and_reals(axis: Any, state: State) -> None:
    """Plot points in the plane, coloured by their symbols."""
    v, label = state["v"][:POINTS].numpy(), (state["h"][:POINTS] * torch.tensor([1, 2, 4])).sum(-1)
    axis.scatter(v[:, 0], v[:, 1], s=3, c=[COLOURS[i] for i in label], linewidths=0)
    axis.set(xlim=(-9, 9), ylim=(-4, 9))


def lattices(axis: Any, state: State) -> None:
    """Plot lattices side by side."""
    rows, columns = LATTICES
    spins = torch.nn.functional.pad(state["s"][: rows * columns].float(), (0, 1, 0, 1), value=0.5)
    size = spins.shape[-1]
    tiles = spins.reshape(rows, columns, size, size).transpose(1, 2).reshape(rows * size, columns * size)
    axis.imshow(tiles[:-1, :-1].numpy(), cmap="Blues", vmin=-0.2, vmax=1.2, interpolation="nearest", aspect="auto")


def two_wells(axis: Any, state: State) -> None:
    """Plot the double wells of the first two pairs against each other."""
    x = state["x"][:POINTS].numpy()
    axis.scatter(x[:, 0], x[:, 2], s=3, c=COLOURS[0], linewidths=0)
    axis.set(xlim=(-3, 3), ylim=(-3, 3))


COMMON = {"batch_size": 512, "refresh": 1024, "inner_steps": 30, "buffer": 8192, "learning_rate": 3e-3}
PANELS = (
    Panel(
        "mixed: GB-RBM, reals and symbols (colours)",
        egm.targets.GBRBM(),
        {**COMMON, "steps": 900, "network": "ResidualMLP(width=64, depth=3)", "refresh_steps": 48, "sample_steps": 96},
        symbols_and_reals,
    ),
    Panel(
        "symbols: Ising 6 × 6, β = 0.4",
        egm.targets.Ising(6, 0.4),
        {**COMMON, "batch_size": 256, "steps": 800, "network": "LatticeConv(width=24, depth=3)", "refresh_steps": 12},
        lattices,
    ),
    Panel(
        "reals: the wells of ManyWell(4)",
        egm.targets.ManyWell(4),
        {**COMMON, "steps": 1200, "network": "ResidualMLP(width=64, depth=3)", "refresh_steps": 48, "sample_steps": 96},
        two_wells,
    ),
)


@plain_style()
def picture(n: int = 10_000, **changes: Any) -> Any:
    """Train, draw n times and plot; `changes` replace options of every panel."""
    figure = new_figure(figsize=(9, 7))
    axes = figure.subplots(3, len(PANELS))
    for column, panel in zip(axes.T, PANELS, strict=True):
        sampler = egm.fit(panel.target, device="cpu", seed=0, **{**panel.options, **changes})
        draws = sampler.sample(n, seed=SEED)
        print(f"{panel.target!r}: ESS {draws.ess:.3f}, log Z {draws.log_z:.4f} ± {draws.log_z_stderr:.4f}")
        print(f"  exactly {panel.target.log_z}; {panel.target.energy_calls} energy calls")
        rows = {
            "draws": draws.state,
            "by their weights": draws.resample(n, seed=SEED),
            "exact draws": panel.target.exact_sample(n, seed=SEED),
        }
        for axis, (label, state) in zip(column, rows.items(), strict=True):
            panel.show(axis, state)
            axis.set(xticks=[], yticks=[], ylabel=label if panel is PANELS[0] else "")
        column[0].set_title(f"{panel.title}\nESS {draws.ess:.2f}")
    return figure


def main() -> int:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file to write (.png)")
    out = parser.parse_args().out
    figure = picture()
    with plain_style(), replacing(out) as stream:
        figure.savefig(stream, format="png", dpi=130, metadata={"Software": None})
    print(f"written to {out} ({out.stat().st_size // 1024} kB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
