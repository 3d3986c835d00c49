"""NumPyro's samplers for mixed spaces, `MixedHMC` and `DiscreteHMCGibbs`, on any target (`run`).

`MixedHMC` (Zhou 2020) gives each symbol a clock of its own and updates it by a Gibbs proposal whenever that runs out,
within a Hamiltonian trajectory of the reals; the whole trajectory is accepted or not. `DiscreteHMCGibbs` alternates a
Gibbs scan of the symbols with a NUTS trajectory of the reals. Both take a NumPyro model, here

    z ~ flat on latent coordinates,   symbols ~ flat,   factor −U(z, symbols),   U(z) = E(x(z)) − log |∂x/∂z|,

whose U is computed by torch: JAX calls back (`jax.pure_callback`) for U, or for U and ∇U together where it
differentiates. So the target counts what is really called, and no energy has to be written twice. A centred variable is
sampled without its constraint, with ½‖z − Pz‖² added to U(Pz), P the projection on centred states: both parts are
independent, and Pz has the right law.

Chains advance together (`jax.vmap`), each callback has a state of every chain. Where trajectories differ in length, the
shorter ones are computed on and thrown away, and those calls are counted, because they were made: a few per cent with
four chains, up to half of all calls with 64. A callback adds a fraction of a millisecond to a call of the energy.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from egm.extras import needed
from egm.mcmc.run import PROGRESS_SECONDS, Chains
from egm.spaces import Space, State
from egm.targets.base import Target, raise_on_bad_energy

Sites = dict[str, Any]  # JAX or NumPy arrays by the names of NumPyro's sites
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
    """Run chains of NumPyro, with its adaptation of step size and (diagonal) mass matrix during warm-up.

    Args:
        target: the distribution; it needs real and categorical variables.
        algorithm: "mixed-hmc" (`MixedHMC`) or "nuts-gibbs" (`DiscreteHMCGibbs` around `NUTS`).
        chains: number of chains, all advanced together.
        warmup: steps that adapt and are thrown away.
        steps: draws to keep of each chain, 1000 if neither this nor `calls` is given.
        calls: stop after so many energy and gradient calls in all, warm-up included, in the place of `steps`; the step
            that reaches that number is finished.
        trajectory_length: time of a trajectory of "mixed-hmc"; by default a quarter of a period of the Gaussian that
            the adapted mass matrix fits, after which it has forgotten where it was.
        seed: seeds every random number.
        init: state [chains, ...] to start from; draws of the space's reference law if left out.
        progress: write a line to stderr every few seconds.

    Returns:
        As `egm.mcmc.run`: states [steps, chains, ...] on the CPU with the calls that they took.
    """
    if not target.space.real or not target.space.categorical:
        raise ValueError(
            f"{algorithm} samples mixed spaces, and {target.space} has only one kind of variable; use egm.mcmc.Gibbs"
            " for symbols or egm.mcmc.HMC for reals"
        )
    if algorithm not in get_args(Algorithm):
        raise ValueError(f"algorithm must be 'mixed-hmc' or 'nuts-gibbs', got {algorithm!r}")
    if steps is not None and calls is not None:
        raise ValueError("give steps or calls, not both")
    limits = {"chains": chains, "warmup": warmup, "steps": steps, "calls": calls}
    for name, value in limits.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    jax, numpyro = _import_numpyro()
    started, called, scored = time.perf_counter(), target.energy_calls, target.score_calls

    generator = torch.Generator().manual_seed(seed)
    state = target.space.reference_sample(chains, generator=generator) if init is None else init
    if target.space.check(state) != (chains,):
        raise ValueError(f"init must hold {chains} states, one a chain, got {target.space.check(state)}")
    layout, bridge = _Layout(target.space), _Bridge(target)
    kernel = _kernel(numpyro, _model(jax, numpyro, layout, bridge), algorithm, trajectory_length)

    kept: list[Sites] = []
    acceptances, leapfrogs = [], []

    def made() -> int:
        """Calls so far, and those that the energies of the draws will take."""
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


# ---------------------------------------------------------------------- torch, as JAX calls it


class _Bridge:
    """U and ∇U of a target on NumPy arrays of latent states, in the order of the space's variables.

    An exception must not cross JAX: the first one is kept, its answer is NaN, and `check` raises it.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._error: Exception | None = None

    def check(self) -> None:
        """Raise what an energy call has raised."""
        if self._error is not None:
            raise self._error

    def energy(self, *arrays: Any) -> NDArray[Any]:
        """U, [...]."""
        latent = self._latent(arrays)
        like = next(latent[name] for name in self.target.space.real)
        batch = self.target.space.batch_shape(latent, latent=True)
        try:
            with torch.no_grad():
                found = self.target.latent_energy(self.projected(latent)) + self._confinement(latent)
        except Exception as error:
            self._error = self._error or error
            found = like.new_full(batch, torch.nan)
        return found.to(like.dtype).numpy()

    def energy_and_gradient(self, *arrays: Any) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """U, [...], and its gradient with respect to each real variable."""
        latent = self._latent(arrays)
        reals = {name: latent[name] for name in self.target.space.real}
        like = next(iter(reals.values()))
        try:
            found, gradient = self.target.latent_energy_and_gradient(self.projected(latent))
            found = found + self._confinement(latent)
            outside = self._outside(latent)
            gradient = {name: g + outside[name] if name in outside else g for name, g in gradient.items()}
        except Exception as error:
            self._error = self._error or error
            found = like.new_full(self.target.space.batch_shape(latent, latent=True), torch.nan)
            gradient = {name: torch.full_like(x, torch.nan) for name, x in reals.items()}
        return found.to(like.dtype).numpy(), {name: g.to(like.dtype).numpy() for name, g in gradient.items()}

    def projected(self, latent: State) -> State:
        """Centred variables projected on centred states."""
        real = self.target.space.real
        return {name: real[name].project(z) if name in real else z for name, z in latent.items()}

    def _outside(self, latent: State) -> State:
        """z − Pz of each centred variable."""
        centred = {name: v for name, v in self.target.space.real.items() if v.centered}
        return {name: latent[name] - v.project(latent[name]) for name, v in centred.items()}

    def _confinement(self, latent: State) -> Tensor | float:
        """Σ ½‖z − Pz‖², [...]."""
        batch = self.target.space.batch_shape(latent, latent=True)
        return sum(0.5 * z.square().reshape(*batch, -1).sum(-1) for z in self._outside(latent).values())

    def _latent(self, arrays: tuple[Any, ...]) -> State:
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]  # copies: JAX's own memory is read-only
        latent = dict(zip(self.target.space, tensors, strict=True))
        for name, variable in self.target.space.categorical.items():
            # A chain that has tried all symbols of its site goes on until the others have, and then forgets about it.
            most = torch.as_tensor(variable.counts(latent[name])) - 1
            latent[name] = torch.minimum(latent[name].long(), most)
        return latent


# ---------------------------------------------------------------------- NumPyro


@dataclass(frozen=True)
class _Layout:
    """States as NumPyro's sites: a Real is a site of its name; NumPyro wants equal numbers of symbols within a site, so
    a Categorical is one site "name/n" for each number n of symbols that it has, over the places that have it.
    """

    space: Space

    def groups(self, name: str) -> dict[str, tuple[int, NDArray[np.int64]]]:
        """Number of symbols and places (flat) for each site of a categorical variable."""
        variable = self.space.categorical[name]
        counts = np.asarray(torch.as_tensor(variable.n).expand(variable.shape).flatten())
        return {f"{name}/{n}": (int(n), np.flatnonzero(counts == n)) for n in np.unique(counts)}

    def sites(self, latent: State, *, dtype: Any) -> Sites:
        """Sites [chains, ...] of latent states [chains, ...], reals in the dtype that JAX computes with."""
        found: Sites = {name: latent[name].cpu().numpy().astype(dtype) for name in self.space.real}
        for name in self.space.categorical:
            flat = latent[name].flatten(1).cpu().numpy().astype(np.int32)
            found.update({site: flat[:, places] for site, (_, places) in self.groups(name).items()})
        return found

    def state(self, kept: list[Sites]) -> State:
        """Latent states [steps, chains, ...] of sites [chains, ...] at each step."""
        found: State = {}
        for name, variable in self.space.variables.items():
            if name in self.space.real:
                found[name] = torch.from_numpy(np.stack([sites[name] for sites in kept]))
                continue
            groups = self.groups(name)
            batch = (len(kept), len(kept[0][next(iter(groups))]))
            flat = np.zeros((*batch, self.space.categorical[name].sites), dtype=np.int64)
            for site, (_, places) in groups.items():
                flat[..., places] = np.stack([sites[site] for sites in kept])
            found[name] = torch.from_numpy(flat.reshape(*batch, *variable.shape))
        return found


def _model(jax: Any, numpyro: Any, layout: _Layout, bridge: _Bridge) -> Callable[[], None]:
    """The model of the module's docstring."""
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
