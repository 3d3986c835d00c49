"""Evaluation of samplers: scores against reference draws, and the record of a run."""

from egm.evaluation.scores import evaluate

__all__ = ["evaluate"]
