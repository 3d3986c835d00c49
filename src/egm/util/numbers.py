"""Checks of numeric options."""

from __future__ import annotations

import math
from collections.abc import Iterable


def check_numbers(
    options: object,
    *,
    positive: Iterable[str] = (),
    non_negative: Iterable[str] = (),
    decays: Iterable[str] = (),
    shares: Iterable[str] = (),
) -> None:
    """Raise unless the options of these names lie in their ranges; None passes, NaN and infinity do not."""
    ranges = (
        (positive, "must be positive", lambda x: 0 < x < math.inf),
        (non_negative, "must not be negative", lambda x: 0 <= x < math.inf),
        (decays, "is the decay of a running average and lies in [0, 1)", lambda x: 0 <= x < 1),
        (shares, "is a share of training and lies in [0, 1]", lambda x: 0 <= x <= 1),
    )
    for names, requirement, holds in ranges:
        for name in names:
            value = getattr(options, name)
            if value is not None and not holds(value):
                raise ValueError(f"{name} {requirement}, got {value}")
