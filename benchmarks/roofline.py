"""The least time a step can take on an H200, from the operations and bytes that no implementation can do without.

Operations: the products of the networks' layers, forwards for every proposal that E^φ judges, forwards and backwards
(three times as many) for the batch. Bytes: every proposal is written once as one byte for each site and read once, and
weights are read once. Activations need not leave the chip, so they do not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from egm.methods.egm import EGM
from egm.train.trainer import Trainer

PEAK_FLOPS = 989e12  # of an H200's tensor cores, dense bfloat16
PEAK_BYTES = 4.8e12  # a second, of its memory


@dataclass(frozen=True)
class Floor:
    """The longer of the time for operations and that for bytes."""

    milliseconds: float
    bound_by: str


def floor_of(trainer: Trainer, *, draws: int | None = None) -> Floor:
    """Of a gradient step of EGM or EGM-BS, or of a number of draws."""
    method, space = trainer.method, trainer.sampler.space
    sites = sum(variable.sites for variable in space.categorical.values())
    sampler = _products(method.network)
    if draws is not None:
        return _floor(draws * sites * 2 * sampler, sites * 2 * sampler)
    batch = trainer.options.batch_size
    operations, size = 6.0 * batch * sampler, 2.0 * sampler
    if isinstance(method, EGM):
        proposals = batch * method.options.proposals
        size += 2.0 * proposals * sites
        if method.energy_model is not None:
            energy = _products(method.energy_model)
            bootstrapped = proposals * (1 - method.options.epsilon)
            operations += 2 * bootstrapped * energy + 6 * batch * energy
            size += 2 * energy + 2 * bootstrapped * sites
    return _floor(operations, size)


def _products(module: object) -> int:
    """Multiplications of one evaluation: the entries of its matrices, embeddings and time features aside."""
    parameters = module.named_parameters()  # type: ignore[attr-defined]
    return sum(p.numel() for name, p in parameters if p.ndim == 2 and "table" not in name and "time" not in name)


def _floor(operations: float, size: float) -> Floor:
    computing, moving = 1e3 * operations / PEAK_FLOPS, 1e3 * size / PEAK_BYTES
    return Floor(max(computing, moving), "operations" if computing > moving else "bytes")
