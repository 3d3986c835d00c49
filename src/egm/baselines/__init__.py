"""Baselines: other methods on the same targets. Each registers itself, in the order in which `egm list` shows them."""

from egm.baselines import egm_variants, bnem, pis, leaps, chains  # noqa: I001  (the order of the list)

__all__ = ["bnem", "chains", "egm_variants", "leaps", "pis"]
