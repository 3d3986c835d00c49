"""Computes the least time of a step on an H200, from the operations and bytes that every implementation needs.

Operations are the products of the networks' layers: forwards for every proposal that E^φ evaluates, forwards and
backwards (three times as many) for the batch. A first layer needs one product for each symbol of a site, or for each
feature of the embedding if these are fewer. Bytes are the bytes of this design: every proposal is written once, as one
byte for each site, and read once, and weights are read once. Activations can stay on the chip and do not count.
Proposals could stay there as well, so this is a bound for code that passes them to an energy.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from egm.methods.egm import EGM
from egm.networks.embeddings import TOKEN_FEATURES
from egm.spaces import Space
from egm.train.trainer import Trainer

PEAK_FLOPS = 989e12  # of an H200's tensor cores, dense bfloat16
PEAK_BYTES = 4.8e12  # a second, of its memory


@dataclass(frozen=True)
class Floor:
    """The longer of the time for operations and that for bytes."""

    milliseconds: float
    bound_by: str


def floor_of(trainer: Trainer, *, draws: int | None = None) -> Floor:
    """Return the floor of a gradient step of EGM or EGM-BS, or of a number of draws."""
    method, space = trainer.method, trainer.sampler.space
    sites = sum(variable.sites for variable in space.categorical.values())
    sampler = _products(method.network, space)
    if draws is not None:
        return _floor(draws * sites * 2 * sampler, sites * 2 * sampler)
    batch = trainer.options.batch_size
    operations, size = 6.0 * batch * sampler, 2.0 * sampler
    if isinstance(method, EGM):
        proposals = batch * method.options.proposals
        size += 2.0 * proposals * sites
        if method.learned is not None:
            energy = _products(method.learned.model, space)
            bootstrapped = proposals * (1 - method.learned.options.epsilon)
            operations += 2 * bootstrapped * energy + 6 * batch * energy
            size += 2 * energy
            if (
                method.learned.options.energy_target == "direct"
            ):  # the target evaluates these proposals as well as the others
                size += 2 * bootstrapped * sites
    return _floor(operations, size)


def _products(module: nn.Module, space: Space) -> int:
    """Return the multiplications of one evaluation: entries of the matrices, without embeddings and time features."""
    matrices = {name: p for name, p in module.named_parameters() if p.ndim == 2}
    total = sum(p.numel() for name, p in matrices.items() if "table" not in name and "time" not in name)
    folded = sum(max(0, TOKEN_FEATURES - variable.size) * variable.sites for variable in space.categorical.values())
    first = next(p for name, p in matrices.items() if name.endswith("first.weight"))
    return total - folded * len(first)


def _floor(operations: float, size: float) -> Floor:
    computing, moving = 1e3 * operations / PEAK_FLOPS, 1e3 * size / PEAK_BYTES
    return Floor(max(computing, moving), "operations" if computing > moving else "bytes")
