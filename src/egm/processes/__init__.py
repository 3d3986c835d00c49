"""Processes that follow a path: flow, diffusion, continuous jump, discrete jump and their superposition."""

from egm.processes.base import Loss, Process, RealGenerator
from egm.processes.denoising import BridgingProcess, DenoisingProcess
from egm.processes.diffusion import Diffusion
from egm.processes.discrete_jump import DiscreteJump
from egm.processes.flow import Flow
from egm.processes.jump import Jump
from egm.processes.superposition import Superposition

__all__ = [
    "BridgingProcess",
    "DenoisingProcess",
    "Diffusion",
    "DiscreteJump",
    "Flow",
    "Jump",
    "Loss",
    "Process",
    "RealGenerator",
    "Superposition",
]
