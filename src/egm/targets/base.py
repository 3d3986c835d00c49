"""`Target`: a space, an energy on it, and known exact answers for the distribution p(x) ∝ exp(−E(x)).

Subclasses implement the hooks at the end of the class where they can (`_log_z`, `_exact_sample` or `_reference_plan`,
`_partial_energy`); public methods count calls, check shapes and cache.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable
from functools import cached_property
from importlib import resources
from typing import Any, Literal

import torch
from torch import Tensor

from egm.mcmc.reference import Reference, ReferencePlan, cache_path, load_or_make, make_reference, slug
from egm.spaces import Space, State

ReferenceKind = Literal["exact", "mcmc"]


class EnergyError(ValueError):
    """An invalid energy function, or an invalid energy."""


class Target:
    """The distribution p(x) ∝ exp(−energy(x)) on a space.

    Args:
        space: the variables.
        energy: function of one keyword argument for each variable, with any number of leading batch dimensions;
            returns a float tensor of the batch's shape. +inf means zero density.
        name: printed name of the target, by default the name of the energy.

    `energy_calls` counts the states passed to the energy (and to `partial_energy` and `conditional_energies`),
    `score_calls` the states whose gradient was computed as well.

    >>> import egm
    >>> target = egm.Target(egm.Space(x=egm.Real(2)), lambda x: 0.5 * x.square().sum(-1))
    >>> target.energy(x=torch.zeros(7, 2)).shape, target.energy_calls
    (torch.Size([7]), 7)
    """

    reference_kind: ReferenceKind | None = None
    """How `exact_sample` draws: "exact", "mcmc" (from a long run with diagnostics), or None (it raises)."""

    symmetries: tuple[str, ...] = ()
    """Symmetries of the energy that a network may build in; they are recorded with every result."""

    narrow_symbols: bool = False
    """Whether energy and partial energy accept symbols of any integer dtype; otherwise they receive int64."""

    def __init__(self, space: Space, energy: Callable[..., Tensor], *, name: str | None = None) -> None:
        if not isinstance(space, Space):
            raise TypeError(f"space must be an egm.Space, for example egm.Space(x=egm.Real(2)); got {space!r}")
        if not callable(energy):
            raise TypeError(f"energy must be a function of the variables {list(space)}, got {type(energy).__name__}")
        self.space = space
        self.energy_calls = 0
        self.score_calls = 0
        self._energy = energy
        self._name = name or f"Target({getattr(energy, '__name__', type(energy).__name__)})"

    @staticmethod
    def from_log_prob(space: Space, log_prob: Callable[..., Tensor]) -> Target:
        """Returns the target with energy −log_prob; the log-density may be unnormalised."""

        @functools.wraps(log_prob)
        def energy(**state: Tensor) -> Tensor:
            return -log_prob(**state)

        return Target(space, energy)

    def __repr__(self) -> str:
        return self._name

    @property
    def built_in(self) -> bool:
        """Whether this is a target of the library, which its printed expression makes again."""
        return type(self) is not Target and type(self).__module__.startswith("egm.targets.")

    # ------------------------------------------------------------------ energies

    def energy(self, **state: Tensor) -> Tensor:
        """E(x), shape [...]; every state counts as one call."""
        batch = self.space.batch_shape(state)
        self.energy_calls += batch.numel()
        return self._energy(**state)

    def partial_energy(self, **state: Tensor) -> Tensor:
        """Returns the terms of E determined by the revealed sites of a masked state, shape [...]; counted as calls."""
        if not self.has_partial_energy:
            raise NotImplementedError(f"{self!r} has no partial energy; only lattice models offer one")
        batch = self.space.batch_shape(state)
        self.energy_calls += batch.numel()
        return self._partial_energy(**self._symbols(state))

    @property
    def has_partial_energy(self) -> bool:
        """Whether `partial_energy` is defined."""
        return type(self)._partial_energy is not Target._partial_energy

    def independent_sites(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Returns groups of sites of a categorical variable; the sites of a group are independent given all others.

        Sites are counted along the flattened shape. By default each group is a single site.
        """
        return tuple((site,) for site in range(self.space.categorical[name].sites))

    def conditional_energies(self, state: State, name: str, sites: tuple[int, ...]) -> Tensor:
        """Returns E(x) for each symbol at a site, other sites unchanged, up to a number shared by the symbols.

        The shape is [n, ..., k] for k sites; each state counts as n·k calls.

        Args:
            state: complete states, [...].
            name: a categorical variable.
            sites: counted along its flattened shape; all with the same number n of symbols.
        """
        symbols = self.space.categorical[name].n
        n = symbols if isinstance(symbols, int) else int(torch.as_tensor(symbols).flatten()[sites[0]])
        self.energy_calls += n * len(sites) * self.space.batch_shape(state).numel()
        return self._conditional_energies(state, name, sites, n)

    def _conditional_energies(self, state: State, name: str, sites: tuple[int, ...], n: int) -> Tensor:
        """Evaluates complete energies; targets with local terms override this by a faster method."""
        x, length = state[name], self.space.categorical[name].sites
        batch = x.shape[: x.ndim - len(self.space.categorical[name].shape)]
        trial = {k: v.expand(n, *v.shape) for k, v in state.items() if k != name}
        found = []
        for site in sites:
            candidates = x.reshape(*batch, length).expand(n, *batch, length).clone()
            candidates[..., site] = torch.arange(n, device=x.device).reshape(n, *(1,) * len(batch))
            found.append(self._energy(**trial, **{name: candidates.reshape(n, *x.shape)}))
        return torch.stack(found, -1)

    def latent_energy(self, latent: State) -> Tensor:
        """−log density in latent coordinates: E(x(z)) − log |∂x/∂z|; symbols may have any integer dtype."""
        return self.energy(**self._symbols(self.space.from_latent(latent))) - self.space.log_det(latent)

    def latent_energy_and_gradient(self, latent: State) -> tuple[Tensor, State]:
        """Returns `latent_energy` and its gradient with respect to every real variable (projected if centred)."""
        if not self.space.real:
            return self.latent_energy(latent), {}
        with torch.enable_grad():
            leaves = {name: latent[name].detach().requires_grad_() for name in self.space.real}
            energy = self.latent_energy({**latent, **leaves})
            if not energy.requires_grad:
                raise EnergyError(
                    f"{self!r} returned an energy without a gradient; compute it from the state with torch operations"
                    " (no .detach(), .item() or NumPy), or use a method that needs no gradients"
                )
            inputs = list(leaves.values())
            gradients = torch.autograd.grad(energy.sum(), inputs, allow_unused=True, materialize_grads=True)
        self.score_calls += energy.numel()
        variables = self.space.real.items()
        return energy.detach(), {n: v.project(g) for (n, v), g in zip(variables, gradients, strict=True)}

    def _symbols(self, state: State) -> State:
        return state if self.narrow_symbols else self.space.widened(state)

    # ------------------------------------------------------------------ exact answers

    @cached_property
    def log_z(self) -> float | None:
        """log ∫ exp(−E(x)) dx, or None if it is unknown."""
        return self._log_z()

    def exact_sample(self, n: int, seed: int = 0, *, device: torch.device | str = "cpu") -> State:
        """Draws n states of the target: independent, or from the "mcmc" reference pool without replacement."""
        if self.reference_kind is None:
            raise NotImplementedError(
                f"{self!r} has no exact sampler (reference_kind is None); compare with a long MCMC run from egm.mcmc"
            )
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        return {name: value.to(device) for name, value in self._exact_sample(n, seed).items()}

    @cached_property
    def reference(self) -> Reference:
        """The pool of MCMC draws behind `exact_sample` if `reference_kind` is "mcmc", with its diagnostics.

        It is made on first use (mostly in seconds; a large spin glass takes half an hour), with progress on stderr,
        and cached on disk; its energy calls are recorded in its diagnostics, not counted by the target.
        """
        plan = self._reference_plan()
        counts = self.energy_calls, self.score_calls
        device = "cuda" if torch.cuda.is_available() else "cpu"
        name = f"{self!r} by {plan.key()}"

        def make() -> Reference:
            print(f"making the MCMC reference of {self!r}, once; cached as {cache_path(name)}", file=sys.stderr)
            return make_reference(self, plan, device=device, progress=True)

        try:
            reference = load_or_make(name, make)
        finally:
            self.energy_calls, self.score_calls = counts
        self.space.batch_shape(reference.state)  # raises if the file belongs to another space
        return reference

    @property
    def reference_summary(self) -> dict[str, Any] | None:
        """The stored summary of a long reference run (moments and quantiles of energy and observables), or None."""
        file = resources.files("egm.targets") / "summaries" / f"{slug(repr(self))}.json"
        record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
        return record if record and record["target"] == repr(self) else None  # slugs drop minus signs

    def chain_start(
        self, chains: int, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
    ) -> State:
        """Returns initial states of Markov chains: draws of the reference law, unless a target overrides this."""
        return self.space.reference_sample(chains, generator=generator, device=device, dtype=dtype)

    def observables(self, **state: Tensor) -> dict[str, Tensor]:
        """Returns named summaries of a state, each [...] or [..., k]; by default the flattened variables."""
        batch = self.space.batch_shape(state)
        flat = {name: value.reshape(*batch, -1) for name, value in state.items()}
        return {n: x if x.is_floating_point() else x.to(torch.get_default_dtype()) for n, x in flat.items()}

    # ------------------------------------------------------------------ checking a user's energy

    def check(self, device: torch.device | str = "cpu", *, seed: int = 0, dtype: torch.dtype | None = None) -> None:
        """Calls the energy on draws of the reference law and raises `EnergyError` if a result is invalid.

        The result must be a floating-point tensor of the batch's shape on the right device, be the same in two calls,
        treat batch elements independently under any leading shape, and be neither NaN nor −inf (nor +inf on every
        draw). The calls are counted.
        """
        generator = torch.Generator(device).manual_seed(seed)
        state = self.space.reference_sample(24, generator=generator, device=device, dtype=dtype)
        energy = self._checked_call(state, (24,))
        raise_on_bad_energy(energy, state)
        self.check_calls(state, energy)

    def check_calls(self, state: State, energy: Tensor | None = None) -> None:
        """Runs the part of `check` that ignores values, on 24 states; `energy` is their energy if already known."""
        energy = self._checked_call(state, (24,)) if energy is None else energy
        # Agreement within a hundred rounding errors of the energy's dtype: the order of summation may change.
        tolerance = 100 * torch.finfo(energy.dtype).eps
        again = self._checked_call(state, (24,))
        if not torch.allclose(again, energy, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise EnergyError("the energy returned two different answers for the same states; it must be deterministic")
        for shape in ((1,), (2, 3, 4), ()):
            part = {name: x[:1] if shape in ((1,), ()) else x for name, x in state.items()}
            part = {name: x.reshape((*shape, *x.shape[1:])) for name, x in part.items()}
            again = self._checked_call(part, shape).flatten()
            if not torch.allclose(again, energy[: len(again)], rtol=tolerance, atol=tolerance, equal_nan=True):
                raise EnergyError(
                    f"the energy of a state changes with the batch around it (leading shape {shape} against (24,));"
                    " reduce over the last axes only, for example x.square().sum(-1)"
                )

    def _checked_call(self, state: State, shape: tuple[int, ...]) -> Tensor:
        signature = _signature(self._energy)
        try:
            if signature is not None:
                signature.bind(**state)
        except TypeError as error:
            raise EnergyError(
                f"the energy must take exactly the variables {list(self.space)} as keyword arguments: {error}"
            ) from error
        energy = self.energy(**state)
        if not isinstance(energy, Tensor) or not energy.is_floating_point():
            kind = energy.dtype if isinstance(energy, Tensor) else type(energy).__name__
            fix = "convert it with .float()" if isinstance(energy, Tensor) else "for NumPy use egm.adapters.from_numpy"
            raise EnergyError(f"the energy must return a floating-point torch.Tensor, got {kind}; {fix}")
        if tuple(energy.shape) != shape:
            raise EnergyError(
                f"for states with leading batch shape {shape} the energy must return shape {shape}, got"
                f" {tuple(energy.shape)}; sum over the variables' own axes only"
            )
        device = next(iter(state.values())).device
        if energy.device != device:
            raise EnergyError(
                f"the states are on {device}, but the energy came back on {energy.device}; create constants on the"
                " device of the state, for example with torch.tensor(..., device=x.device)"
            )
        return energy.detach()

    # ------------------------------------------------------------------ hooks for subclasses

    def _log_z(self) -> float | None:
        return None

    def _exact_sample(self, n: int, seed: int) -> State:
        draws = self.reference.draw(n, seed)
        return {k: x.to(torch.get_default_dtype()) if x.is_floating_point() else x for k, x in draws.items()}

    def _reference_plan(self) -> ReferencePlan:
        raise NotImplementedError(f"{self!r} has no plan for an MCMC reference")

    def _partial_energy(self, **state: Tensor) -> Tensor:
        raise NotImplementedError


def _signature(energy: Callable[..., Tensor]) -> inspect.Signature | None:
    """Returns the signature of an energy, or None for builtin functions without one."""
    try:
        return inspect.signature(energy.forward if isinstance(energy, torch.nn.Module) else energy)
    except ValueError:
        return None


def raise_on_bad_energy(energy: Tensor, state: State) -> None:
    """Raises `EnergyError` with the state on NaN or −inf, or if every energy is +inf (a single +inf is legal)."""
    bad = torch.isnan(energy) | (energy == -torch.inf)
    if bool(bad.any()):
        index = tuple(int(i) for i in bad.nonzero()[0])
        shown = ", ".join(f"{name}={value[index].tolist()}" for name, value in state.items())
        raise EnergyError(
            f"the energy is {float(energy[index])} at the state {shown}; only finite values and +inf are legal"
        )
    if energy.numel() and bool((energy == torch.inf).all()):
        shown = ", ".join(f"{name}={value.flatten(0, energy.ndim - 1)[0].tolist()}" for name, value in state.items())
        raise EnergyError(
            f"the energy is +inf (zero density) on every one of {energy.numel()} draws, for example at {shown};"
            " set loc and scale of the Real variables so that the reference law reaches the support"
        )
