"""EGM-SP on two CPU cores, a minute a run: smaller batches and shorter simulations than a GPU likes.

python benchmarks/self_proposal_cpu.py train runs/cpu --device cpu --jobs 1 --threads 2
python benchmarks/self_proposal_cpu.py evaluate runs/cpu --results results/self_proposal_cpu.json

With a second process on the machine a minute buys less.
"""

from __future__ import annotations

import sys

from cells import Cell, main

SMALL = ("--batch_size", "256", "--refresh", "512", "--refresh_steps", "12")
CELLS = [
    Cell("fast/gbrbm", "egm-sp", 60),
    Cell("fast/ising5-b04", "egm-sp", 60, extra=SMALL),
]


if __name__ == "__main__":
    sys.exit(main(CELLS, __doc__))
