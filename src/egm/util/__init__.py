"""Helpers for every package: atomic writes, optional packages, expressions, seeds, broadcasting, cached tensors."""
