"""Modes of a mixture: the centres and masses of its components."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Modes:
    """The k modes of a target on R^d.

    Attributes:
        centers: [k, d], float64.
        masses: [k], float64; their exact probabilities.
        radius: points farther than this from every centre belong to no mode.
    """

    centers: Tensor
    masses: Tensor
    radius: float

    def assign(self, x: Tensor) -> Tensor:
        """Returns the index of the mode of each point x [..., d]: int64 [...], −1 for none.

        >>> import torch
        >>> modes = Modes(torch.tensor([[0.0, 0.0], [5.0, 5.0]]), torch.tensor([0.5, 0.5]), radius=2.0)
        >>> modes.assign(torch.tensor([[0.1, 0.0], [4.0, 5.0], [2.5, 2.5]])).tolist()
        [0, 1, -1]
        """
        square = (x[..., None, :] - self.centers.to(x)).square().sum(-1)
        nearest = square.min(-1)
        return torch.where(nearest.values <= self.radius**2, nearest.indices, -1)
