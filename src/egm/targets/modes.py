"""Modes of a mixture: where its components sit and how much mass each holds."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Modes(NamedTuple):
    """The k modes of a target on R^d.

    Attributes:
        centers: [k, d], float64.
        masses: [k], float64; their exact probabilities.
    """

    centers: Tensor
    masses: Tensor


def nearest(x: Tensor, centers: Tensor) -> Tensor:
    """Index of the row of `centers` [k, d] nearest to x [..., d]: int64 [...].

    >>> import torch
    >>> nearest(torch.tensor([[0.1, 0.0], [4.0, 5.0]]), torch.tensor([[0.0, 0.0], [5.0, 5.0]])).tolist()
    [0, 1]
    """
    return (x[..., None, :] - centers).square().sum(-1).argmin(-1)
