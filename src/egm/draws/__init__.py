"""Draws: states with importance weights, what the weights say, and files that other programs read."""

from egm.draws.draws import Draws

__all__ = ["Draws"]
