"""Scores of a sampler: metrics against fresh exact draws, each with its floor from exact draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

from egm.draws import Draws
from egm.draws.diagnostics import log_mean, weight_ess
from egm.metrics.floors import Floor, find_metric, floor, known_floor
from egm.metrics.metrics import mode_count
from egm.runs.environment import commit, hardware
from egm.sampler import AnySampler
from egm.spaces import State
from egm.targets.base import Target
from egm.util.seeds import derive_seed

QUICK_DRAWS = 2000  # of an evaluation during training
QUICK_PAIRS = 20  # pairs behind the floor shown during training
ASSIGNMENT_PAIRS = 20  # W2 of points takes a second per pair
MOST_ENTRIES = 64  # largest size of an observable whose means are recorded
Mean: TypeAlias = tuple[list[float], list[float] | None]  # means of an observable's entries, and standard errors


def metrics_of(target: Target) -> list[str]:
    """Returns the default metrics of a target: e_w1, m_w1 (with a magnetisation) and x_w2 (with real variables)."""
    names = ["e_w1"]
    if "magnetization" in _observables_of(target):
        names.append("m_w1")
    if target.space.real:
        names.append("x_w2")
    return names


def quick_scores(target: Target, n: int = QUICK_DRAWS) -> Callable[[AnySampler, int], dict[str, float]]:
    """Returns a function that scores a sampler during training: W1 distances of n draws, and their floors."""
    floors: dict[str, float] = {}

    def score(sampler: AnySampler, seed: int) -> dict[str, float]:
        names = [name for name in metrics_of(target) if name != "x_w2"]
        with _not_counted(target):
            if not floors:
                floors.update({f"{name}_floor": floor(name, target, n, pairs=QUICK_PAIRS).mean for name in names})
            draws = _on_cpu(sampler.sample(n, seed=seed, weigh=False).state)
            reference = target.exact_sample(n, seed=derive_seed(seed, 1))
            values = {name: find_metric(name)(target, draws, reference) for name in names}
        return {**values, **floors}

    return score


def evaluate(
    sampler: AnySampler,
    target: Target | None = None,
    *,
    n: int = 2000,
    repeats: int = 20,
    floor_pairs: int = 200,
    resample_from: int = 5,
    seed: int = 0,
    metrics: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Scores a sampler with fresh draws on both sides and returns the scores for its record.

    If draws have weights, `resampled` scores n states resampled from more weighted draws, and ESS, log Z and ELBO use
    all draws of all repeats (EUBO the draws of the first repeat). `observables` holds weighted means over all draws
    with standard errors (none for states of chains, which are correlated), and the same for the reference draws, or for
    the whole pool of an MCMC reference. `modes` is the smallest number of modes in the n raw draws of any repeat.

    Args:
        sampler: the sampler to score.
        target: by default the target of the sampler.
        n: draws on each side.
        repeats: independent evaluations; mean and standard deviation over them are reported.
        floor_pairs: pairs of exact sets for each floor that does not ship with the package (at most 20 for x_w2).
        resample_from: weighted draws for each resampled state; the first n of them are the raw draws. 1 leaves
            `resampled` out, which suffices if the weights are nearly equal, and takes a fifth of the draws.
        seed: seed of draws and references; never the random numbers of training.
        metrics: names; by default e_w1, m_w1 (with a magnetisation) and x_w2 (with real variables).
    """
    target = target or sampler.target
    if target is None:
        raise ValueError("the sampler was loaded without its target; pass target=")
    if repeats < 1 or resample_from < 1:
        raise ValueError(f"repeats and resample_from must be at least 1, got {repeats} and {resample_from}")
    names = metrics_of(target) if metrics is None else list(metrics)
    raw, resampled = ({name: list[float]() for name in names} for _ in range(2))
    weighted, observed, modes = sampler.why_unweighted() is None, _Means(), []
    has_modes = "mode" in _observables_of(target)
    log_weights, eubo = [], None
    with _not_counted(target) as before:
        for repeat in range(repeats):
            drawn = sampler.sample(resample_from * n if weighted else n, seed=derive_seed(seed, 2 * repeat))
            reference = target.exact_sample(n, seed=derive_seed(seed, 2 * repeat + 1))
            weighted = weighted and drawn.log_weights is not None  # the map of a flow may not be invertible
            sets = [(raw, {name: x[:n] for name, x in drawn.state.items()})]
            observed.add(target, drawn, reference)
            if has_modes:
                modes.append(mode_count(target, _on_cpu(sets[0][1])))
            if weighted:
                log_weights.append(drawn.log_weights)
                eubo = drawn.eubo if repeat == 0 else eubo
            if weighted and resample_from > 1:
                sets.append((resampled, drawn.resample(n, seed=derive_seed(seed, 2 * repeats + repeat))))
            for values, state in sets:
                for name in names:
                    values[name].append(find_metric(name)(target, _on_cpu(state), reference))
        own = derive_seed(seed, 3 * repeats)  # exact draws that no repeat uses
        floors = _floors(target, names, n, pairs=floor_pairs, seed=own)
        eval_calls = target.energy_calls - before
    scored = weighted and resample_from > 1
    return {
        "target": repr(target),
        **{name: sampler.config.get(name) for name in ("method", "seed")},
        "n": n,
        "repeats": repeats,
        "metrics": {name: _score(raw[name], floors[name]) for name in names},
        "resampled": {name: _score(resampled[name], floors[name]) for name in names} if scored else None,
        **_certificate(log_weights if weighted else [], eubo),
        "log_z_exact": target.log_z,
        "observables": observed.record(independent=sampler.independent, pool=_pool_means(target)),
        "modes": min(modes, default=None),
        "eval_energy_calls": eval_calls,
        "symmetries": _symmetries(sampler),
        "dtype": sampler.config.get("dtype"),
        "hardware": hardware(sampler.device),
        "torch": torch.__version__,
        "commit": commit(),
    }


def _floors(target: Target, names: Sequence[str], n: int, *, pairs: int, seed: int) -> dict[str, Floor]:
    """Returns the floor of each metric, shipped with the package or estimated from pairs of exact sets."""
    counts = {name: min(pairs, ASSIGNMENT_PAIRS) if name == "x_w2" else pairs for name in names}
    return {
        name: known_floor(name, target, n) or floor(name, target, n, pairs=count, seed=seed)
        for name, count in counts.items()
    }


def _symmetries(sampler: AnySampler) -> list[str]:
    """Returns the symmetries built into a sampler's network; none for chains, which have no network."""
    network = getattr(sampler, "network", None)
    return list(getattr(getattr(network, "body", network), "symmetries", ()))


def _score(values: list[float], floor: Floor) -> dict[str, float | int | None]:
    return {
        "mean": float(np.mean(values)),
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "floor": floor.mean,
        "floor_pairs": floor.pairs,
    }


def _certificate(log_weights: list[torch.Tensor], eubo: float | None) -> dict[str, float | None]:
    """Returns ESS, log Z and its bounds from the weights of all draws; None without weights."""
    if not log_weights:
        return dict.fromkeys(("ess", "log_z", "log_z_stderr", "elbo", "eubo"))
    log_w = torch.cat(log_weights).cpu()
    log_z, stderr = log_mean(log_w.numpy()[:, None])
    ess, elbo = float(weight_ess(log_w)), float(log_w.mean())
    return {"ess": ess, "log_z": log_z, "log_z_stderr": stderr, "elbo": elbo, "eubo": eubo}


def _observables_of(target: Target) -> list[str]:
    """Returns the names of a target's observables, by evaluating them at two states."""
    probe = target.space.reference_sample(2, generator=torch.Generator().manual_seed(0))
    return list(target.observables(**probe))


class _Means:
    """Means of a target's observables over repeats, for weighted draws and for reference draws.

    Errors come from the spread of all draws, not from the few means of repeats: with the error s_r of repeat r
    (`Draws.expect`) and R repeats, stderr² = Σ_r s_r²/R².
    """

    def __init__(self) -> None:
        self._draws: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._references: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def add(self, target: Target, drawn: Draws, reference: State) -> None:
        for found, draws in ((self._draws, drawn), (self._references, Draws(drawn.space, reference))):
            for name, x in target.observables(**draws.state).items():
                entries = x.reshape(len(x), -1)
                if name != "mode" and entries.shape[1] <= MOST_ENTRIES:
                    mean, stderr = draws.expect(lambda entries=entries, **_: entries)
                    found.setdefault(name, []).append((mean.cpu(), stderr.cpu()))

    def record(self, *, independent: bool, pool: Mapping[str, Mean] | None) -> dict[str, dict[str, list[float] | None]]:
        """Returns means and standard errors; `pool` holds the reference's, if it is by MCMC.

        Draws that are not `independent` have no errors (None).
        """
        found = {}
        for name, repeats in self._draws.items():
            mean, stderr = _over_repeats(repeats)
            reference, reference_stderr = _over_repeats(self._references[name])
            if pool is not None:
                reference, reference_stderr = pool.get(name, (reference, None))
            found[name] = {
                "mean": mean,
                "stderr": stderr if independent else None,
                "reference": reference,
                "reference_stderr": reference_stderr,
            }
        return found


def _pool_means(target: Target) -> dict[str, Mean] | None:
    """Returns means of observables over all draws of an MCMC reference, with errors that account for correlation.

    The errors were computed when the pool was made; an observable that was added or changed since then has none.
    """
    if target.reference_kind != "mcmc":
        return None
    try:
        reference = target.reference
    except NotImplementedError:  # the target draws without a pool
        return {}
    known, found = reference.diagnostics["observables"], dict[str, Mean]()
    for name, x in target.observables(**reference.state).items():
        if x[0].numel() > MOST_ENTRIES:
            continue
        means = x.reshape(len(x), -1).double().mean(0).tolist()
        entries = [known.get(name if x.ndim == 1 else f"{name}[{i}]") for i in range(len(means))]
        same = all(d and abs(d["mean"] - m) <= 1e-3 * d["sd"] for d, m in zip(entries, means, strict=True))
        errors = [round(d["stderr"], 6) for d in entries if d] if same else None
        found[name] = [round(m, 6) for m in means], errors
    return found


def _over_repeats(repeats: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[list[float], list[float]]:
    means, errors = (torch.stack(parts) for parts in zip(*repeats, strict=True))
    parts = means.mean(0), errors.square().sum(0).sqrt() / len(repeats)
    mean, stderr = ([round(v, 6) for v in x.tolist()] for x in parts)
    return mean, stderr


@contextmanager
def _not_counted(target: Target) -> Iterator[int]:
    """Restores the target's call counters at the end, because evaluation does not count as training."""
    calls = target.energy_calls, target.score_calls
    try:
        yield calls[0]
    finally:
        target.energy_calls, target.score_calls = calls


def _on_cpu(state: State) -> State:
    return {name: x.cpu() for name, x in state.items()}
