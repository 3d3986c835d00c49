"""After how many seconds of training EGM-SP is as good as exact draws: runs of several lengths.

python benchmarks/time_to_floor.py train runs/floor --jobs 1
python benchmarks/time_to_floor.py evaluate runs/floor --results results/time_to_floor.json --device cuda

Each run is one of its own, from the start, with a schedule that ends with its seconds.
"""

from __future__ import annotations

import sys

from cells import Cell, main

LENGTHS = {"fast/ising10-b04": (10, 20, 30, 40, 50), "fast/ising16-critical": (60, 120)}
CELLS = [Cell(recipe, "egm-sp", seconds, (0,), "cost") for recipe, lengths in LENGTHS.items() for seconds in lengths]

if __name__ == "__main__":
    sys.exit(main(CELLS, __doc__))
