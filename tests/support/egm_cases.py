"""Helpers for the tests of EGM and EGM-BS: networks that tell states apart, an energy model that knows E_r."""

import torch
from torch import nn

from egm.methods.egm import EGM
from egm.methods.egm_options import EGMBSOptions, EGMOptions
from egm.paths import VE, CondOT, Masked, Uniform
from egm.targets.guard import EnergyGuard
from support.marginals import LabelledGaussians, TinyIsing

ORACLES = {
    "masked": TinyIsing(Masked, beta=0.5),
    "uniform": TinyIsing(Uniform, beta=0.5),
    "mixed": LabelledGaussians(CondOT, Masked),
    "mixed-ve": LabelledGaussians(lambda v: VE(v, sigma_min=0.2), Masked),  # type: ignore[arg-type]
}


def end_points(oracle, n):
    """Draws of the reference law: states x_t are then of every kind."""
    state = oracle.target.space.reference_sample(n, generator=seeded(7), dtype=torch.float64)
    return oracle.target.space.to_latent(state)


class Outputs(nn.Module):
    """A denoiser whose outputs are parameters, one for each state of the batch, so that gradients tell states apart."""

    def __init__(self, processes, n):
        super().__init__()
        self.values = nn.ParameterDict({k: torch.zeros(n, *p.output_shape) for k, p in processes.items()})

    def forward(self, state, t):
        return dict(self.values)


class Constant(nn.Module):
    """An energy network that returns one trained number."""

    def __init__(self, value=0.0):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, x_t, t):
        return self.value


class Exact(nn.Module):
    """An energy model that knows E_r, and records its times and regression targets."""

    forward_looking = False

    def __init__(self, oracle):
        super().__init__()
        self.network, self.oracle, self.times, self.targets, self.calibrations = Constant(), oracle, [], [], 0

    def energy(self, x_r, r):
        joint = self.oracle._log_joint(x_r if "x" in x_r else x_r["s"], r.double())
        return -torch.logsumexp(joint[0] if isinstance(joint, tuple) else joint, -1)

    def forward(self, x_r, r, *, network=None):
        self.times.append(r)
        return self.energy(x_r, r)

    def calibrate(self, x_t, t, target):
        self.calibrations += 1

    def loss(self, x_t, t, target, *, clip=None):
        self.targets.append((x_t, t, target))
        return self.network.value.square()


def method_of(oracle, n, *, model=None, **options):
    target, processes = oracle.target, oracle.processes
    return EGM(
        EnergyGuard(target), oracle.path, processes, Outputs(processes, n), energy_model=model,
        options=EGMOptions(**options) if model is None else EGMBSOptions(**options),
    )  # fmt: skip


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)
