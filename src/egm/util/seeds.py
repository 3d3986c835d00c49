"""Seeds derived from a seed and an index."""

from __future__ import annotations

import numpy as np


def derive_seed(seed: int, index: int) -> int:
    """Returns a separate seed for each repetition: neighbouring seeds and indices do not share random streams."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0] >> 1)
