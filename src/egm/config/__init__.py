"""From names and expressions to the parts of a run, and back: the registry, options, and `config.yaml`."""

from egm.config.registry import register

__all__ = ["register"]
