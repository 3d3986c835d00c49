"""Energies in JAX: tensors are exchanged by DLPack, without a copy if both sides use the same device.

The energy is compiled once for each number of states. If torch needs a gradient, E and ∂E/∂x come from one call of
`jax.vjp` with cotangent 1 (each state has its own energy), and torch's cotangent c multiplies ∂E/∂x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from egm.adapters.bridge import dtype_of, flattened, one_each
from egm.spaces import Space
from egm.targets.base import Target
from egm.util.extras import needed


def from_jax(space: Space, energy: Callable[..., Any], *, batched: bool = True, name: str | None = None) -> Target:
    """Returns a target from an energy that computes with JAX, gradients included.

    Args:
        space: the variables.
        energy: called with one JAX array for each variable, by name. With `batched` they have exactly one leading axis,
            [n, *shape], and it returns n numbers; without, it is a function of one state, which is mapped over many by
            `jax.vmap`. `jax.jit` must be able to compile it.
        batched: whether the energy takes many states at once.
        name: how the target prints; by default after the energy.

    JAX computes in single precision unless `jax.config.update("jax_enable_x64", True)` was called; in single precision
    the energy of float64 states is a float32, too.
    """
    bridge = JaxEnergy(space, energy, batched=batched, by="from_jax")
    return Target(space, bridge, name=name or f"Target({getattr(energy, '__name__', type(energy).__name__)})")


class JaxEnergy:
    """A JAX function of states as an energy of tensors."""

    def __init__(self, space: Space, energy: Callable[..., Any], *, batched: bool, by: str) -> None:
        self.space, self._by = space, by
        self._jax: Any = needed("jax", what=by, extra="numpyro" if by == "from_numpyro" else "jax")
        jax = self._jax

        def mapped(**state: Any) -> Any:
            return jax.vmap(lambda one: energy(**one))(state)

        many = energy if batched else mapped

        def with_gradient(reals: dict[str, Any], symbols: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            found, pullback = jax.vjp(lambda reals: many(**reals, **symbols), reals)
            return found, pullback(jax.numpy.ones_like(found))[0]

        self.value = jax.jit(lambda reals, symbols: many(**reals, **symbols))
        self.value_and_gradient = jax.jit(with_gradient)

    def __call__(self, **state: Tensor) -> Tensor:
        """Returns E, [...], which torch can differentiate with respect to the reals."""
        states, batch = flattened(self.space, state)
        reals = [states[name] for name in self.space.real]
        symbols = {name: self._to_jax(states[name]) for name in self.space.categorical}
        if torch.is_grad_enabled() and any(x.requires_grad for x in reals):
            found: Any = _Differentiable.apply(self, symbols, *reals)
        else:
            found = self._to_torch(self.value(self._reals(reals), symbols), like=next(iter(state.values())))
        if found.dtype == torch.float64:
            found = found.to(dtype_of(self.space, state))
        return one_each(found, batch, by=self._by)

    def _reals(self, reals: list[Tensor] | tuple[Tensor, ...]) -> dict[str, Any]:
        return {name: self._to_jax(x) for name, x in zip(self.space.real, reals, strict=True)}

    def _to_jax(self, x: Tensor) -> Any:
        x = x.detach().contiguous()
        if not self._jax.config.jax_enable_x64:
            x = x.to(torch.float32 if x.is_floating_point() else torch.int32)
        if x.device.type != "cpu" and self._jax.default_backend() == "cpu":
            x = x.cpu()  # JAX has no such device
        return self._jax.dlpack.from_dlpack(x) if x.numel() else self._jax.numpy.asarray(x.cpu().numpy())

    def _to_torch(self, array: Any, *, like: Tensor) -> Tensor:
        return torch.from_dlpack(array).to(like.device)


class _Differentiable(torch.autograd.Function):
    """E with the gradient that JAX computed in the same call."""

    @staticmethod
    def forward(ctx: Any, bridge: JaxEnergy, symbols: dict[str, Any], *reals: Tensor) -> Tensor:
        found, gradient = bridge.value_and_gradient(bridge._reals(reals), symbols)
        slopes = [bridge._to_torch(gradient[name], like=reals[0]) for name in bridge.space.real]
        ctx.save_for_backward(*(slope.to(x.dtype) for slope, x in zip(slopes, reals, strict=True)))
        return bridge._to_torch(found, like=reals[0])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        (c,) = cotangents
        slopes = ctx.saved_tensors
        return (None, None, *(c.to(s.dtype).reshape(-1, *(1,) * (s.ndim - 1)) * s for s in slopes))
