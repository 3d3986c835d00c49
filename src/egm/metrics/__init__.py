"""Metrics: exact Wasserstein distances, mode counts, correlations, and the floors from exact draws."""

from egm.metrics.floors import Floor, at_floor, floor
from egm.metrics.metrics import METRICS, e_w1, e_w2, m_w1, mode_count, mode_shares, two_point_correlation, x_w2
from egm.metrics.wasserstein import w1, w1_to_quantiles, w2

__all__ = [
    "METRICS",
    "Floor",
    "at_floor",
    "e_w1",
    "e_w2",
    "floor",
    "m_w1",
    "mode_count",
    "mode_shares",
    "two_point_correlation",
    "w1",
    "w1_to_quantiles",
    "w2",
    "x_w2",
]
