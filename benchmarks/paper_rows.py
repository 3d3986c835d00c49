"""The rows of the paper's tables with the fast recipes.

python benchmarks/paper_rows.py train runs/rows --device cuda       trains every cell, each in a process of its own
python benchmarks/paper_rows.py evaluate runs/rows --results results/paper_rows.json
"""

from __future__ import annotations

import sys

from cells import Cell, main

NOTE = "a fast recipe; the paper's own settings (recipes/paper) were not run in full"
CELLS = [
    Cell("fast/ising5-b04", "egm", 90),
    Cell("fast/gbrbm", "egm", 80),
    Cell("fast/jointdw4", "egm", 90),
    Cell("fast/jointmog", "egm", 120),
    Cell("fast/gbrbm", "egm-bs", 120),
    Cell("fast/jointdw4", "egm-bs", 150),
    Cell("fast/ising5-b04", "egm-bs", 160),
    Cell("fast/jointmog", "egm-bs", 240),
    Cell("fast/ising10-b04", "egm", 120, (0,)),
    Cell("fast/ising10-b04", "egm-bs", 300, (0,)),
    # without the symmetries of the equivariant network
    Cell("fast/jointdw4", "egm", 90, (0,), "ablation", ("--network", "ResidualMLP(width=128, depth=6)")),
]


if __name__ == "__main__":
    sys.exit(main(CELLS, __doc__, note=NOTE))
