"""Runs NumPyro's samplers for mixed spaces, `MixedHMC` and `DiscreteHMCGibbs`, on any target (`run`).

`MixedHMC` (Zhou 2020) gives each symbol its own clock and updates the symbol by a Gibbs proposal when the clock runs
out, within a Hamiltonian trajectory of the reals; the whole trajectory is accepted or rejected. `DiscreteHMCGibbs`
alternates a Gibbs scan of the symbols with a NUTS trajectory of the reals. Both take a NumPyro model, here

    z ~ flat on latent coordinates,   symbols ~ flat,   factor −U(z, symbols),   U(z) = E(x(z)) − log |∂x/∂z|,

whose U is computed by torch: JAX calls back (`jax.pure_callback`) for U, or for U and ∇U together where it
differentiates. So the target counts the actual calls, and no energy has to be written twice. A centred variable is
sampled without its constraint, with ½‖z − Pz‖² added to U(Pz), P the projection on centred states: both parts are
independent, and Pz has the right law.

Chains advance together (`jax.vmap`), each callback has a state of every chain. If trajectories differ in length, the
shorter ones are continued and the surplus is discarded. The calls of the surplus are counted, because they were made: a
few per cent with four chains, up to half of all calls with 64. A callback adds a fraction of a millisecond to a call of
the energy.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import torch

from egm.baselines.numpyro_bridge import Bridge, Layout, Sites
from egm.mcmc.run import PROGRESS_SECONDS, Chains
from egm.spaces import State
from egm.targets.base import Target, raise_on_bad_energy
from egm.util.extras import needed

Algorithm = Literal["mixed-hmc", "nuts-gibbs"]


def run(
    target: Target,
    *,
    algorithm: Algorithm = "mixed-hmc",
    chains: int = 4,
    warmup: int = 500,
    steps: int | None = None,
    calls: int | None = None,
    trajectory_length: float = math.pi / 2,
    seed: int = 0,
    init: State | None = None,
    progress: bool = False,
) -> Chains:
    """Runs chains of NumPyro, with its adaptation of step size and (diagonal) mass matrix during warm-up.

    Args:
        target: the distribution; it needs real and categorical variables.
        algorithm: "mixed-hmc" (`MixedHMC`) or "nuts-gibbs" (`DiscreteHMCGibbs` around `NUTS`).
        chains: number of chains, all advanced together.
        warmup: steps that adapt and are discarded.
        steps: states to keep of each chain, 1000 if neither this nor `calls` is given.
        calls: stop after this number of energy and gradient calls in all, warm-up included, instead of `steps`; the
            step that reaches this number is finished.
        trajectory_length: time of a trajectory of "mixed-hmc"; by default a quarter of a period of the Gaussian that
            the adapted mass matrix fits, after which the state no longer depends on the start.
        seed: seed of every random number.
        init: state [chains, ...] to start from; draws of the space's reference law if left out.
        progress: write a line to stderr every few seconds.

    Returns:
        As `egm.mcmc.run`: states [steps, chains, ...] on the CPU with the calls that they took.
    """
    _check(target, algorithm, chains=chains, warmup=warmup, steps=steps, calls=calls)
    jax, numpyro = _import_numpyro()
    started, called, scored = time.perf_counter(), target.energy_calls, target.score_calls

    generator = torch.Generator().manual_seed(seed)
    state = target.space.reference_sample(chains, generator=generator) if init is None else init
    if target.space.check(state) != (chains,):
        raise ValueError(f"init must hold {chains} states, one a chain, got {target.space.check(state)}")
    layout, bridge = Layout(target.space), Bridge(target)
    kernel = _kernel(numpyro, _model(jax, numpyro, layout, bridge), algorithm, trajectory_length)

    kept: list[Sites] = []
    acceptances, leapfrogs = [], []

    def made() -> int:
        """Returns the number of calls so far, including future calls for the energies of the kept states."""
        return target.energy_calls - called + target.score_calls - scored + chains * len(kept)

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        keys = jax.random.split(jax.random.key(seed), chains)
        start = layout.sites(target.space.to_latent(state), dtype=jax.numpy.result_type(float))
        now = jax.jit(jax.vmap(lambda key, z: kernel.init(key, warmup, z, (), {})))(keys, start)
        advance = jax.jit(jax.vmap(lambda state: kernel.sample(state, (), {})))
        wanted = warmup + (1000 if steps is None else steps)
        shown = time.perf_counter()
        step = 0
        while step <= warmup or (made() < calls if calls is not None else step < wanted):
            now = jax.block_until_ready(advance(now))
            bridge.check()
            step += 1
            if step > warmup:
                kept.append({name: np.asarray(z) for name, z in now.z.items()})
                acceptances.append(np.asarray(now.hmc_state.accept_prob))
                leapfrogs.append(np.asarray(now.hmc_state.num_steps))
            if progress and time.perf_counter() - shown > PROGRESS_SECONDS:
                shown = time.perf_counter()
                phase, of = "warm-up" if step <= warmup else "sampling", f" of {wanted}" if calls is None else ""
                print(f"{algorithm} {phase}: step {step}{of}, {made()} calls", file=sys.stderr, flush=True)
        step_size = float(np.mean(now.hmc_state.adapt_state.step_size))

    draws = target.space.from_latent(bridge.projected(layout.state(kept)))
    energy = target.energy(**draws).detach()
    raise_on_bad_energy(energy, draws)
    return Chains(
        state=draws,
        energy=energy,
        acceptance=float(np.mean(acceptances)),
        energy_calls=target.energy_calls - called,
        score_calls=target.score_calls - scored,
        seconds=time.perf_counter() - started,
        report={"step size": step_size, "leapfrog steps": float(np.mean(leapfrogs))},
    )


def _check(target: Target, algorithm: str, **limits: int | None) -> None:
    if not target.space.real or not target.space.categorical:
        raise ValueError(
            f"{algorithm} samples mixed spaces, and {target.space} has only one kind of variable; use egm.mcmc.Gibbs"
            " for symbols or egm.mcmc.HMC for reals"
        )
    if algorithm not in get_args(Algorithm):
        raise ValueError(f"algorithm must be 'mixed-hmc' or 'nuts-gibbs', got {algorithm!r}")
    if limits["steps"] is not None and limits["calls"] is not None:
        raise ValueError("give steps or calls, not both")
    for name, value in limits.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def _model(jax: Any, numpyro: Any, layout: Layout, bridge: Bridge) -> Callable[[], None]:
    """Returns the model of the module's docstring."""
    space, dist, jnp = layout.space, numpyro.distributions, jax.numpy
    float_dtype = jnp.result_type(float)
    scalar = jax.ShapeDtypeStruct((), float_dtype)
    shapes = {name: jax.ShapeDtypeStruct(v.latent_shape, float_dtype) for name, v in space.real.items()}

    def call(function: Callable[..., Any], result: Any, state: Sites) -> Any:
        ordered = [state[name] for name in space]  # JAX sorts the names of a dict
        return jax.pure_callback(function, result, *ordered, vmap_method="broadcast_all")

    @jax.custom_vjp
    def potential(state: Sites) -> Any:
        return call(bridge.energy, scalar, state)

    def forward(state: Sites) -> tuple[Any, Any]:
        return call(bridge.energy_and_gradient, (scalar, shapes), state)

    def backward(gradient: Sites, cotangent: Any) -> tuple[Sites]:
        return ({name: cotangent * gradient[name] if name in gradient else None for name in space},)

    potential.defvjp(forward, backward)

    def model() -> None:
        state: Sites = {}
        for name, variable in space.variables.items():
            if name in space.real:
                flat = dist.ImproperUniform(dist.constraints.real, (), variable.latent_shape)
                state[name] = numpyro.sample(name, flat)
                continue
            symbols = jnp.zeros(space.categorical[name].sites, dtype=int)
            for site, (n, places) in layout.groups(name).items():
                uniform = dist.Categorical(logits=jnp.zeros(n)).expand([len(places)])
                symbols = symbols.at[places].set(numpyro.sample(site, uniform.mask(False)))
            state[name] = symbols.reshape(variable.shape)
        numpyro.factor(".energy", -potential(state))

    return model


def _kernel(numpyro: Any, model: Callable[[], None], algorithm: Algorithm, trajectory_length: float) -> Any:
    infer = numpyro.infer
    if algorithm == "mixed-hmc":
        return infer.MixedHMC(infer.HMC(model, trajectory_length=trajectory_length))
    return infer.DiscreteHMCGibbs(infer.NUTS(model))


def _import_numpyro() -> tuple[Any, Any]:
    jax = needed("jax", what="mixed-hmc", extra="numpyro")
    # Asynchronous dispatch may wait for a thread that a callback holds; it has to be off before JAX first computes.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    needed("numpyro.infer", what="mixed-hmc", extra="numpyro")
    return jax, needed("numpyro", what="mixed-hmc", extra="numpyro")
