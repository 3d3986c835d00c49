"""Networks: maps from a latent state x_t and its time t to one output for each variable, or to a pooled scalar.

A process defines the output shape of its variable (`Process.output_shape`) and how an output becomes a prediction
(`Process.link`): means E[x_1 | x_t] unchanged, logits of p(x_1 | x_t) through softmax, log-rates of a jump kernel
through exp. Any module that fulfils `Denoiser` can replace the bodies of this package.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from egm.networks.fused import project
from egm.paths.base import Time
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.spaces import Categorical, Real, Space, State


class Denoiser(Protocol):
    """A network for a space: any `nn.Module` whose `forward` has this signature.

    Args of a call:
        state: latent states [..., *latent_shape] (`Space.to_latent`), with any leading batch shape; a Categorical
            variable may hold its mask symbol, `variable.mask`.
        t: float tensor that broadcasts against the batch.

    A call returns a dict with one entry for each variable: means in latent coordinates [..., *latent_shape] for a Real
    one (log-rates [..., *latent_shape, bins] where it follows a `Jump`), logits [..., *shape, n] over the data symbols
    for a Categorical one. Where sites have unequal numbers of symbols, n is the largest and entries of illegal symbols
    are ignored.
    """

    def __call__(self, state: State, t: Tensor) -> Mapping[str, Tensor]: ...


class Body(nn.Module, ABC):
    """A network built for a space; options are keyword-only and stored as attributes of the same name.

    Args:
        space: the variables of a state.
        outputs: trailing shape of every output. A variable's name takes its latent shape (means), its latent shape
            and one axis of bins (log-rates), or its shape and one axis of symbols (logits); any other name takes (), a
            scalar.

    Final layers are initialised to zero, so an untrained body returns zeros.
    """

    symmetries: tuple[str, ...] = ()
    """Symmetries under which the network is equivariant by construction; stored in every record."""

    def __init__(self, space: Space, outputs: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.space = space
        self.outputs: dict[str, tuple[int, ...]] = check_outputs(space, outputs)

    @abstractmethod
    def forward(self, state: State, t: Tensor) -> State:
        """Returns one tensor [..., *outputs[name]] for each output."""

    def batch_shape(self, state: State, t: Tensor) -> torch.Size:
        """Returns the leading shape of a latent state, after checking that t broadcasts to it."""
        batch = self.space.batch_shape(state, latent=True)
        missing = len(batch) - t.ndim
        if missing < 0 or any(size not in (1, full) for size, full in zip(t.shape, batch[missing:], strict=True)):
            raise ValueError(f"t has shape {tuple(t.shape)}, which does not broadcast to the batch {tuple(batch)}")
        return batch


class Head(nn.Module):
    """A zero-initialised linear layer from [..., width] to [..., *shape].

    Under autocast, scalars are still computed in the dtype of the weights: in bfloat16, an energy of size 100 has a
    rounding error of 0.4, which would enter every importance weight.
    """

    def __init__(self, width: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.linear = nn.Linear(width, math.prod(shape))
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, h: Tensor) -> Tensor:
        if self.shape:
            return self.linear(h).unflatten(-1, self.shape)
        with torch.autocast(h.device.type, enabled=False):
            return project(h, self.linear.weight, self.linear.bias)


class Scalar(nn.Module):
    """A network with one scalar output, as a tensor [...]: E(x_t, t) from a body with outputs={"energy": ()}."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        outputs = getattr(body, "outputs", {"energy": ()})
        if list(outputs.values()) != [()]:
            raise ValueError(f"Scalar wraps a network with one scalar output, outputs={{'energy': ()}}; got {outputs}")
        self.body = body
        (self.name,) = outputs

    def forward(self, state: State, t: Tensor) -> Tensor:
        """Returns E(x_t, t), [...]."""
        return self.body(state, t)[self.name]


def is_built_in(network: nn.Module) -> bool:
    """Returns whether a network is one of this package's bodies, possibly inside wrappers.

    These bodies take symbols of any integer dtype and may be rounded to bfloat16; a user's module is called with int64
    symbols and is not rounded.
    """
    while not isinstance(network, Body):
        inner = [
            x for name in ("body", "network", "module") if isinstance(x := getattr(network, name, None), nn.Module)
        ]
        if not inner:
            return False
        network = inner[0]
    return type(network).__module__.startswith("egm.networks.")


def is_locally_equivariant(network: nn.Module) -> bool:
    """Returns whether a network or one of its submodules declares `locally_equivariant = True`."""
    return any(getattr(module, "locally_equivariant", False) for module in network.modules())


def is_particles(space: Space) -> bool:
    """Returns whether a space is one centred Real, (particles, dimension), and Categoricals of shape (particles,)."""
    reals = list(space.real.values())
    if len(reals) != 1 or not reals[0].centered or len(reals[0].shape) != 2:
        return False
    return all(variable.shape == reals[0].shape[:1] for variable in space.categorical.values())


def rounding(device: torch.device, *, enabled: bool) -> AbstractContextManager[object]:
    """Returns a context of bfloat16 matrix products on a GPU, if `enabled`; every use or replay casts weights anew."""
    if not enabled or device.type != "cuda":
        return nullcontext()
    return torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)


def predict(network: Denoiser, processes: Mapping[str, Process[Any]], x_t: State, t: Time) -> State:
    """Returns a network's predictions at latent states x_t: `process.link` of its output, for each variable.

    Names and shapes of the outputs are checked; values are not, so that the host never waits for a GPU.
    """
    if not isinstance(t, Tensor):
        like = next((x for x in x_t.values() if x.is_floating_point()), None)
        device = next(iter(x_t.values())).device
        t = torch.full((), t, device=device, dtype=torch.get_default_dtype() if like is None else like.dtype)
    outputs = network(x_t, t)
    if not isinstance(outputs, Mapping):
        raise TypeError(
            f"a network must return a dict with one tensor for each variable {list(processes)},"
            f" got {type(outputs).__name__}"
        )
    return {name: process.link(_checked(outputs, name, process, x_t[name])) for name, process in processes.items()}


def _checked(outputs: Mapping[str, Tensor], name: str, process: Process[Any], x: Tensor) -> Tensor:
    if name not in outputs:
        raise ValueError(f"the network returned no output for the variable '{name}', only for {list(outputs)}")
    output, shape = outputs[name], process.output_shape
    expected = (*process.path.batch_shape(x), *shape)
    if not isinstance(output, Tensor) or not output.is_floating_point():
        kind = output.dtype if isinstance(output, Tensor) else type(output).__name__
        raise TypeError(f"the network's output for '{name}' must be a floating-point tensor, got {kind}")
    if tuple(output.shape) != expected:
        raise ValueError(
            f"the network's output for '{name}' has shape {tuple(output.shape)}, but {type(process).__name__} needs"
            f" {expected}: the batch shape followed by {shape}"
        )
    return output


def check_outputs(space: Space, outputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Returns the outputs as a dict of tuples; raises if a shape does not fit its variable."""
    if not isinstance(space, Space):
        raise TypeError(f"space must be an egm.Space, got {space!r}")
    if not outputs:
        raise ValueError(f"outputs is empty; name at least one of the variables {list(space)}, or a scalar")
    checked = {name: tuple(shape) for name, shape in outputs.items()}
    for name, shape in checked.items():
        variable = space.variables.get(name)
        if isinstance(variable, Categorical):
            legal, expected = shape == (*variable.shape, variable.size), f"{(*variable.shape, variable.size)} (logits)"
        elif isinstance(variable, Real):
            means = variable.latent_shape
            legal = shape == means or (len(shape) == len(means) + 1 and shape[:-1] == means and shape[-1] > 0)
            expected = f"{means} (means) or {means} and one more axis (log-rates)"
        else:
            legal, expected = shape == (), f"() (a scalar), because '{name}' is not one of the variables {list(space)}"
        if not legal:
            raise ValueError(f"outputs['{name}'] is {shape}, expected {expected}")
    return checked


def positive(**options: int) -> None:
    """Raises unless every option is a positive whole number."""
    for name, value in options.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a positive whole number, got {value!r}")


def not_negative(**options: int) -> None:
    """Raises unless every option is a non-negative whole number."""
    for name, value in options.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name} must be a non-negative whole number, got {value!r}")


@torch.no_grad()
def activation_bytes(network: nn.Module, path: ProductPath) -> int:
    """Estimates the bytes of activations alive at once for one state of a path: four times the largest layer output.

    Symbols count as one-hot vectors, because first layers may take them in that form.
    """
    like = next(network.parameters())
    sizes = [like.element_size() * sum(v.sites * v.size for v in path.space.categorical.values())]
    generator = torch.Generator(like.device).manual_seed(0)
    x = path.prior_sample((1,), 0.5, generator=generator, dtype=like.dtype, device=like.device)

    def look(module: nn.Module, given: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    hooks = [module.register_forward_hook(look) for module in network.modules()]
    try:
        network(x, torch.full((1,), 0.5, dtype=like.dtype, device=like.device))
    finally:
        for hook in hooks:
            hook.remove()
    return 4 * max(sizes)
