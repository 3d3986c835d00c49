"""Builds the parts of a run from names and expressions, and describes them: registry, options, and `config.yaml`."""

from egm.config.registry import register

__all__ = ["register"]
