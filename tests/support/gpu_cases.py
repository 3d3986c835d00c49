"""Triton kernels run on a GPU where there is one, and in Triton's interpreter elsewhere."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class OnAGpu(torch.Tensor):
    """A tensor that claims to be on a GPU, so that Triton kernels run on it in the interpreter."""

    is_cuda = True  # type: ignore[assignment]
