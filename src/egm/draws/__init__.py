"""Draws: states with importance weights, diagnostics of the weights, and export to files."""

from egm.draws.draws import Draws

__all__ = ["Draws"]
