"""Transfer matrix: log Z, energy moments and independent draws of a nearest-neighbour model on a small torus.

A model of R × C sites with q symbols has a table of energies for each bond and each site,

    E(s) = Σ_rc [ right_rc(s_rc, s_r,c+1) + down_rc(s_rc, s_r+1,c) + site_rc(s_rc) ]      (indices modulo R and C).

With a_r the r-th row (one of S = q^C), w_r(a_r) = exp(−[right and site energies of row r]) and
V_r(a, a′) = Π_c exp(−down_rc(a_c, a′_c)), a configuration has the weight Π_r w_r(a_r) V_r(a_r, a_r+1). Given the first
row a_0, the rows are a Markov chain with backward messages

    m_R−1(a; a_0) = V_R−1(a, a_0),        m_k(·; a_0) = V_k (w_k+1 · m_k+1(·; a_0)),
    p(a_0) = w_0(a_0) m_0(a_0; a_0) / Z,  p(a_k | a_k−1, a_0) ∝ V_k−1(a_k−1, a_k) w_k(a_k) m_k(a_k; a_0).

V_r is never formed: it is the Kronecker product U_r ⊗ W_r over the left and right half of the columns, so V x = U X Wᵀ
with x reshaped to X[hi, lo]: √S instead of S operations per entry. Drawing a_k = (hi, lo) uses the same split: hi from
the half-applied message (w_k m_k) Wᵀ, which holds the sum over lo for every lower half of the row above, then lo.

All numbers are float64 and scaled to maximum one. Since m_k(a) / m_k(a′) ≥ exp(−spread), with the spread of a row's
vertical energies, numbers that underflow are negligible while the spread is below `MAX_SPREAD` (relative loss below
e^−80).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

MAX_ROW_STATES = 6561
"""Largest number q^C of row states that are summed exactly (12 columns of two symbols, 8 of three)."""

MAX_SPREAD = 325.0
"""Largest spread of the vertical energies of one row: twice it must stay well inside the range of float64 (e^±708)."""

_CACHED_ROW_STATES = 1024  # largest S for which all messages are kept: two tables [R−1, S, S], at most 170 MB
_TABLE_BYTES = 2**28  # memory of the message tables for one group of first rows, if they are not kept
_BLOCK = 2**16  # samples drawn together


def fits(*, states: int, size: int, spread: float) -> bool:
    """Returns whether a size × size model of q = `states` symbols is small and warm enough for the transfer matrix.

    Args:
        states: number of symbols q.
        size: number of rows and columns.
        spread: bound on the range of the vertical energies of one row.
    """
    return states**size <= MAX_ROW_STATES and spread <= MAX_SPREAD


class TransferMatrix:
    """Exact answers for a nearest-neighbour model on a torus.

    Args:
        right: energy of the bond from site (r, c) to (r, c+1), float64 [R, C, q, q].
        down: energy of the bond from site (r, c) to (r+1, c), float64 [R, C, q, q].
        site: energy of each site, float64 [R, C, q].

    Four free spins in a field:

    >>> import math
    >>> bond, site = torch.zeros(2, 2, 2, 2), torch.tensor([-0.5, 0.5]).expand(2, 2, 2)
    >>> abs(TransferMatrix(bond, bond, site).log_z - 4 * math.log(2 * math.cosh(0.5))) < 1e-12
    True
    """

    def __init__(self, right: Tensor, down: Tensor, site: Tensor) -> None:
        rows, columns, q = site.shape
        if tuple(right.shape) != (rows, columns, q, q) or tuple(down.shape) != (rows, columns, q, q):
            raise ValueError(
                f"site of shape {tuple(site.shape)} needs right and down of shape {(rows, columns, q, q)},"
                f" got {tuple(right.shape)} and {tuple(down.shape)}"
            )
        if rows < 2 or columns < 2:
            raise ValueError(f"the torus needs at least 2 rows and 2 columns, got {rows} and {columns}")
        if q**columns > MAX_ROW_STATES:
            raise ValueError(
                f"{q} symbols in {columns} columns make {q**columns} row states, more than {MAX_ROW_STATES};"
                " use a Markov chain from egm.mcmc"
            )
        self.rows, self.columns, self.q = rows, columns, q
        right, down, site = (table.to("cpu", torch.float64) for table in (right, down, site))
        spread = float((down.amax((2, 3)) - down.amin((2, 3))).sum(1).max())
        if not spread <= MAX_SPREAD:
            raise ValueError(
                f"the vertical energies of one row span {spread:.4g}, more than float64 can resolve exactly"
                f" ({MAX_SPREAD:g}); use a higher temperature or a Markov chain from egm.mcmc"
            )
        half = columns // 2
        parts = self._sum_over_row(right, site), _kronecker_sum(down[:, :half]), _kronecker_sum(down[:, half:])
        floors = [energy.flatten(1).amin(1) for energy in parts]  # of every row, so that each factor has maximum one
        self._offset = float(sum(floor.sum() for floor in floors))
        self._energies = [e - f.reshape(-1, *[1] * (e.ndim - 1)) for e, f in zip(parts, floors, strict=True)]
        self._row, self._upper, self._lower = (torch.exp(-energy) for energy in self._energies)

    @property
    def row_states(self) -> int:
        """Number S of states of one row."""
        return self._row.shape[1]

    @cached_property
    def log_z(self) -> float:
        """Logarithm of the partition function Σ exp(−E)."""
        return float(torch.logsumexp(self._first_row_log_weights, 0)) - self._offset

    @cached_property
    def energy_moments(self) -> tuple[float, float]:
        """Exact mean and variance of the energy: −d/db and d²/db² of log Σ exp(−bE) at b = 1."""
        jet, log_scale = self._first_row_jets(order=2)
        z, dz, ddz = (jet * torch.exp(log_scale - log_scale.max())).sum(1).tolist()
        return self._offset - dz / z, ddz / z - (dz / z) ** 2

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Returns n independent draws, int64 [n, R, C]."""
        blocks = [self._sample_rows(min(_BLOCK, n - start), generator) for start in range(0, n, _BLOCK)]
        return self._symbols(torch.cat(blocks))

    def _symbols(self, rows: Tensor) -> Tensor:
        """Returns symbols [..., C] of row numbers [...]: their digits to base q, the first column leading."""
        place = self.q ** torch.arange(self.columns - 1, -1, -1)
        return rows[..., None] // place % self.q

    # ------------------------------------------------------------------ messages

    def _sum_over_row(self, right: Tensor, site: Tensor) -> Tensor:
        """Returns the energies within each row, [R, S]."""
        symbols = self._symbols(torch.arange(self.q**self.columns))
        total = torch.zeros(self.rows, len(symbols), dtype=torch.float64)
        for c in range(self.columns):
            a, b = symbols[:, c], symbols[:, (c + 1) % self.columns]
            total += right[:, c, a, b] + site[:, c, a]
        return total

    def _first_row_jets(self, *, order: int) -> tuple[Tensor, Tensor]:
        """Z(a) = w_0(a) m_0(a; a) of exp(−bE) for every first row a, with its first derivatives in b at b = 1.

        Returns:
            The derivatives 0 .. order, [order + 1, S], and log_scale [S], the logarithm of a factor taken out of them
            (in addition to the ground energy of all factors).
        """
        row, upper, lower = (
            torch.stack([(-energy) ** j * torch.exp(-energy) for j in range(order + 1)]) for energy in self._energies
        )
        row = row.unflatten(2, (upper.shape[2], lower.shape[2]))
        group = max(1, 2**19 // self.row_states)  # first rows handled together: 4 MB per tensor, about a cache size
        jets, log_scales = [], []
        for first in torch.arange(self.row_states).split(group):
            hi, lo = first // lower.shape[2], first % lower.shape[2]
            jet = _leibniz(torch.mul, upper[:, -1].mT[:, hi, :, None], lower[:, -1].mT[:, lo, None, :])
            log_scale = torch.zeros(len(first), dtype=torch.float64)
            for k in range(self.rows - 2, -1, -1):
                jet = _leibniz(torch.mul, row[:, k + 1], jet)
                jet = _leibniz(torch.matmul, upper[:, k], _leibniz(torch.matmul, jet, lower[:, k].mT))
                scale = jet[0].amax((1, 2))
                jet = [derivative / scale[:, None, None] for derivative in jet]
                log_scale = log_scale + scale.log()
            diagonal = [derivative[torch.arange(len(first)), hi, lo] for derivative in jet]
            jets.append(torch.stack(_leibniz(torch.mul, row[:, 0, hi, lo], diagonal)))
            log_scales.append(log_scale)
        return torch.cat(jets, 1), torch.cat(log_scales)

    @cached_property
    def _first_row_log_weights(self) -> Tensor:
        jet, log_scale = self._first_row_jets(order=0)
        return jet[0].log() + log_scale

    def _tables(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Returns w_k m_k and its sums (w_k m_k) Wᵀ_k−1 over lo, k = 1 .. R−1, for first rows [n]; [R−1, n, A, B]."""
        shape = (self.rows - 1, len(first), self._upper.shape[1], self._lower.shape[1])
        weighted, summed = torch.empty(shape, dtype=torch.float64), torch.empty(shape, dtype=torch.float64)
        hi, lo = first // shape[3], first % shape[3]
        message = self._upper[-1].T[hi][:, :, None] * self._lower[-1].T[lo][:, None, :]
        for k in range(self.rows - 1, 0, -1):
            message = message / message.amax((1, 2), keepdim=True)
            weighted[k - 1] = self._row[k].reshape(shape[2:]) * message
            summed[k - 1] = weighted[k - 1] @ self._lower[k - 1].T
            message = self._upper[k - 1] @ summed[k - 1]
        return weighted, summed

    @cached_property
    def _all_tables(self) -> tuple[Tensor, Tensor]:
        return self._tables(torch.arange(self.row_states))

    # ------------------------------------------------------------------ draws

    def _sample_rows(self, n: int, generator: torch.Generator) -> Tensor:
        """Returns n draws as row numbers, int64 [n, R]."""
        u = torch.rand(n, self.rows, 2, generator=generator, dtype=torch.float64)
        marginal = torch.softmax(self._first_row_log_weights, 0)
        rows = torch.empty(n, self.rows, dtype=torch.int64)
        rows[:, 0] = _draw(marginal.expand(1, -1), u[None, :, 0, 0])[0]
        if self.row_states <= _CACHED_ROW_STATES:
            self._fill_rows(rows, u, rows[:, 0], self._all_tables)
            return rows
        # Draws with the same first row share its tables, which are computed for a group of first rows at a time.
        distinct, which = rows[:, 0].unique(return_inverse=True)
        group = max(1, _TABLE_BYTES // (16 * (self.rows - 1) * self.row_states))
        for start in range(0, len(distinct), group):
            members = ((which >= start) & (which < start + group)).nonzero()[:, 0]
            part = rows[members]
            self._fill_rows(part, u[members], which[members] - start, self._tables(distinct[start : start + group]))
            rows[members] = part
        return rows

    def _fill_rows(self, rows: Tensor, u: Tensor, which: Tensor, tables: tuple[Tensor, Tensor]) -> None:
        """Draws rows 1 .. R−1 in place, given the first; `which` [n] maps draws to entries of the tables."""
        weighted, summed = tables
        size = self._lower.shape[1]
        for k in range(1, self.rows):
            above_hi, above_lo = rows[:, k - 1] // size, rows[:, k - 1] % size
            hi = _draw(self._upper[k - 1, above_hi] * summed[k - 1, which, :, above_lo], u[:, k, :1])
            lo = _draw(self._lower[k - 1, above_lo] * weighted[k - 1, which, hi[:, 0]], u[:, k, 1:])
            rows[:, k] = (hi * size + lo)[:, 0]


_Jet: TypeAlias = Tensor | list[Tensor]  # a function of b and its derivatives, along the first axis


def _leibniz(product: Callable[[Tensor, Tensor], Tensor], f: _Jet, g: _Jet) -> list[Tensor]:
    """Returns the derivatives of a bilinear product: (fg)⁽ⁿ⁾ = Σ_k (n over k) f⁽ᵏ⁾ g⁽ⁿ⁻ᵏ⁾."""
    derivatives = []
    for n in range(len(f)):
        terms = [math.comb(n, k) * product(f[k], g[n - k]) for k in range(1, n + 1)]
        derivatives.append(sum(terms, start=product(f[0], g[n])))
    return derivatives


def _kronecker_sum(down: Tensor) -> Tensor:
    """Returns the energies between two rows of c columns, [R, q^c, q^c], from bond energies [R, c, q, q]."""
    rows, columns, q, _ = down.shape
    total = torch.zeros(rows, 1, 1, dtype=down.dtype)
    for c in range(columns):
        size = q * total.shape[1]
        total = (total[:, :, None, :, None] + down[:, c, None, :, None, :]).reshape(rows, size, size)
    return total


def _draw(weights: Tensor, u: Tensor) -> Tensor:
    """Draws indices with probability ∝ weights [n, m], by inversion of the uniforms u [n, k]; int64 [n, k]."""
    cumulative = weights.cumsum(1)
    index = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)
    return index.clamp_(max=weights.shape[1] - 1)
