"""EGM-SP on the targets of the paper and beyond it: E-W1 beside the floor, ESS, log Z, seconds and energy calls.

python benchmarks/self_proposal.py train runs/sp --seeds 0 --jobs 1              one seed with the GPU to itself
python benchmarks/self_proposal.py train runs/sp --seeds 1 2 --jobs 8 --stretch 2.5        the others share it
python benchmarks/self_proposal.py evaluate runs/sp --results results/self_proposal.json --device cuda --jobs 8
python benchmarks/bars.py results/self_proposal.json

Lattices need no resampled scores: `--resample_from 1` evaluates them in a fifth of the time.
"""

from __future__ import annotations

import sys

from cells import Cell, main

WITHOUT = ("--symmetries", "false")
CELLS = [
    Cell("fast/ising5-b02", "egm-sp", 30),
    Cell("fast/ising5-b04", "egm-sp", 40),
    Cell("fast/ising10-b02", "egm-sp", 25),
    Cell("fast/ising10-b04", "egm-sp", 60),
    Cell("fast/ising15-b028", "egm-sp", 60),
    Cell("fast/gbrbm", "egm-sp", 100),
    Cell("fast/jointmog", "egm-sp", 80),
    Cell("fast/jointdw4", "egm-sp", 80),
    Cell("fast/manywell", "egm-sp", 80),
    Cell("fast/gmm40", "egm-sp", 80),
    Cell("fast/ising10-critical", "egm-sp", 120),
    Cell("fast/ising15-critical", "egm-sp", 240),
    Cell("fast/ising16-critical", "egm-sp", 280),
    Cell("fast/potts16-critical", "egm-sp", 280),
    Cell("fast/ising10-b04", "egm-sp", 60, (0,), "ablation", WITHOUT),
]


if __name__ == "__main__":
    sys.exit(main(CELLS, __doc__))
