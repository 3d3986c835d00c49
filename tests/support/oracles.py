"""Exact answers for tests, by quadrature and enumeration, and a check that fits every exact sampler.

Nothing here uses the formulas under test beyond the energy itself.
"""

import math
from collections.abc import Callable

import numpy as np
import torch

from egm.spaces import State
from egm.targets.base import Target
from support.stats import assert_mean

# ---------------------------------------------------------------------- four particles in the plane


def four_particle_log_z(pairs: Callable[[np.ndarray, int, int], np.ndarray], *, reach: float, step: float) -> float:
    """Log ∫ exp(−Σ_{i<j} u_ij(d_ij)) over four centred particles in the plane, in orthonormal coordinates.

    With y_i = x_i − x_1 the volume element is n^{−dim/2} dy = ¼ dy_2 dy_3 dy_4. Rotating y_2 to (r, 0) leaves

        ¼ ∫ 2πr dr e^{−u_12(r)} ∫∫ v_3(y_3) K(y_3 − y_4) v_4(y_4) dy_3 dy_4,
        v_k(y) = exp(−u_1k(|y|) − u_2k(|y − (r, 0)|)),    K(y) = exp(−u_34(|y|)),

    a convolution on a grid for every r.

    Args:
        pairs: u_ij(d), called with distances and the two particle numbers 0 .. 3.
        reach: distance beyond which exp(−u) is negligible.
        step: spacing of the grid, and of r. The trapezoid rule on the plane errs by O(step³) where exp(−u) has a cusp
            at distance zero, and by next to nothing where it vanishes there.
    """
    r_values = np.arange(1, round(reach / step)) * step
    # v is centred half-way between particles 1 and 2; it vanishes beyond `reach` of either of them.
    half = round(reach / step)
    axis = np.arange(-half, half + 1) * step
    size = 1 << (2 * len(axis) - 1).bit_length()
    wrapped = np.minimum(np.arange(size), size - np.arange(size)) * step
    kernel = np.fft.rfft2(np.exp(-pairs(np.hypot(wrapped[:, None], wrapped), 2, 3)))
    radial = np.zeros(len(r_values))
    for index, r in enumerate(r_values):
        # Both particles on grid points: the cusps of exp(−u(|y|)) at y = 0 then err alike for every r.
        left = -(round(r / step) // 2) * step
        to_first = np.hypot(axis[:, None] - left, axis)
        to_second = np.hypot(axis[:, None] - left - r, axis)
        third, fourth = (np.exp(-pairs(to_first, 0, k) - pairs(to_second, 1, k)) for k in (2, 3))
        convolved = np.fft.irfft2(np.fft.rfft2(fourth, (size, size)) * kernel, (size, size))[: len(axis), : len(axis)]
        radial[index] = r * np.exp(-pairs(np.array(r), 0, 1)) * (third * convolved).sum()
    # The integrand vanishes at both ends, linearly at r = 0: Simpson's rule.
    weights = np.where(np.arange(1, len(r_values) + 1) % 2, 4, 2) / 3
    return math.log(0.25 * 2 * math.pi * step**5 * float(weights @ radial))


def dw4_log_z(beta: float = 1.0) -> float:
    """Log Z of DW4 at an inverse temperature."""
    return four_particle_log_z(lambda d, i, j: beta * (0.9 * (d - 4) ** 4 - 4 * (d - 4) ** 2), reach=8.0, step=1 / 8)


def joint_dw4_log_z(beta: float = 1.0, *, steps: tuple[float, float] = (1 / 6, 1 / 10)) -> float:
    """Log Z of JointDW4 at an inverse temperature: a sum over types."""
    return math.log(joint_dw4_compositions(beta, steps=steps).sum())


def joint_dw4_compositions(beta: float = 1.0, *, steps: tuple[float, float] = (1 / 6, 1 / 10)) -> np.ndarray:
    """The part of Z of JointDW4 that has m = 0 .. 4 particles of the second type, [5].

    Only m matters, the binomial (4 over m) counts the assignments; the cusps' O(step³) is removed by extrapolation.
    """
    b, c = [[-3.0, -2.5], [-2.5, -2.8]], [[0.8, 0.4], [0.4, 0.6]]

    def partition(m: int, step: float) -> float:
        types = [0] * (4 - m) + [1] * m

        def pair(d: np.ndarray, i: int, j: int) -> np.ndarray:
            first, second = types[i], types[j]
            return 0.5 * beta * (b[first][second] * (d - 2) ** 2 + c[first][second] * (d - 2) ** 4)

        return math.comb(4, m) * math.exp(four_particle_log_z(pair, reach=6.0, step=step))

    coarse, fine = (np.array([partition(m, step) for m in range(5)]) for step in steps)
    return fine + (fine - coarse) / ((steps[0] / steps[1]) ** 3 - 1)


def energy_moments(log_z: Callable[[float], float], *, delta: float = 0.05) -> tuple[float, float]:
    """Mean −d/dβ log Z and standard deviation √(d²/dβ² log Z) of the energy at β = 1, by five-point differences."""
    a, b, c, d, e = (log_z(1 + k * delta) for k in (-2, -1, 0, 1, 2))
    variance = (-a + 16 * b - 30 * c + 16 * d - e) / (12 * delta**2)
    return (e - 8 * d + 8 * b - a) / (12 * delta), math.sqrt(variance)


# ---------------------------------------------------------------------- quadrature


def log_integral(log_density: Callable[[np.ndarray], np.ndarray], lo: float, hi: float, *, points: int = 4001) -> float:
    """Log ∫ exp(f(x)) dx by the trapezoid rule; f vanishes at both ends for all practical purposes."""
    x = np.linspace(lo, hi, points)
    values = log_density(x)
    top = values.max()
    return float(top + np.log(np.exp(values - top).sum() * (x[1] - x[0])))


# ---------------------------------------------------------------------- draws against densities


def assert_draws_match_energy(target: Target, state: State, *, functions: int = 8, seed: int = 0) -> None:
    """Independent draws [n, ...] of p ∝ exp(−E) obey identities that involve the energy alone.

    Test functions φ are cos(w·z + u·onehot(x) + c), of the latent reals z and the symbols x, and the energy itself.

    Stein, for every real coordinate i, with the latent energy U: E[φ ∂_i U − ∂_i φ] = 0 for the cosines, 1 and z_i.
    Balance, for moves s → s' that are as likely as s' → s: E[(φ(s') − φ(s)) / (1 + exp(U(s') − U(s)))] = 0, because
    accepting them with Barker's probability leaves p invariant. The moves are another symbol at one site, all equally
    likely, and s' = s + c·(a − b) with a, b two other draws (symbols modulo their number): small c sees the width of
    the noise, c = 1 jumps between modes and sees their weights. That a and b may be wrong too does not matter: their
    difference is symmetric.
    """
    space = target.space
    generator = torch.Generator().manual_seed(seed)
    latent = {name: z.double() if z.is_floating_point() else z for name, z in space.to_latent(state).items()}
    phases = 2 * math.pi * torch.rand(functions, generator=generator, dtype=torch.float64)
    weights = {
        name: torch.randn(functions, math.prod(variable.latent_shape), generator=generator, dtype=torch.float64)
        for name, variable in space.real.items()
    }
    weights |= {
        name: torch.randn(functions, variable.sites, variable.size, generator=generator, dtype=torch.float64)
        for name, variable in space.categorical.items()
    }
    counts = {
        name: torch.as_tensor(variable.n).expand(variable.shape).flatten()
        for name, variable in space.categorical.items()
    }

    def angle(latent: State) -> torch.Tensor:
        """The arguments of the cosines, [n, functions]."""
        n = len(next(iter(latent.values())))
        total = phases.expand(n, functions)
        for name in space.real:
            total = total + latent[name].reshape(n, -1) @ weights[name].T
        for name in space.categorical:
            symbols = torch.nn.functional.one_hot(latent[name].reshape(n, -1), weights[name].shape[-1])
            total = total + torch.einsum("nsk,fsk->nf", symbols.double(), weights[name])
        return total

    def assert_balance(latent: State, moved: State, label: str) -> None:
        before, after = target.latent_energy(latent), target.latent_energy(moved)
        accept = torch.sigmoid(before - after)
        cosines = (angle(moved).cos() - angle(latent).cos()) * accept[:, None]
        # Where the move is never accepted it changes nothing, however high the energy.
        energies = torch.where(accept > 0, (after - before) * accept, 0.0)
        assert_mean(torch.cat([cosines, energies[:, None]], 1), 0.0, f"balance of {label}")

    gradients = target.latent_energy_and_gradient(latent)[1] if space.real else {}
    phi, slope = angle(latent).cos(), -angle(latent).sin()
    for name, gradient in gradients.items():
        z, force = latent[name].flatten(1), gradient.flatten(1)
        stein = phi[:, :, None] * force[:, None, :] - slope[:, :, None] * weights[name]
        assert_mean(torch.cat([stein, force[:, None], (z * force - 1)[:, None]], 1), 0.0, f"Stein identity of '{name}'")

    for name, variable in space.categorical.items():
        for site in range(variable.sites):
            moved = latent[name].flatten(1).clone()
            other = 1 + (torch.rand(len(moved), generator=generator) * (counts[name][site] - 1)).long()
            moved[:, site] = (moved[:, site] + other) % counts[name][site]
            assert_balance(latent, {**latent, name: moved.reshape(latent[name].shape)}, f"'{name}' at site {site}")

    third = len(next(iter(latent.values()))) // 3
    start, a, b = ({name: x[k * third : (k + 1) * third] for name, x in latent.items()} for k in range(3))
    for c in (1.0, 0.1) if space.real else (1.0,):
        jump = {name: start[name] + c * (a[name] - b[name]) for name in space.real}
        if c == 1.0:
            for name, x in start.items():
                if name in space.categorical:
                    n = counts[name].reshape(space.categorical[name].shape)
                    jump[name] = (x + a[name] - b[name]) % n
        assert_balance(start, {**start, **jump}, f"jumps by {c} times the difference of two draws")
