"""Kernels run on a GPU where there is one, and in Triton's interpreter elsewhere."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class OnAGpu(torch.Tensor):
    """A tensor that says it is on a GPU: the interpreter takes it."""

    is_cuda = True  # type: ignore[assignment]
