"""Targets: energies with their exact answers."""

from egm.targets.base import EnergyError, Target

__all__ = ["EnergyError", "Target"]
