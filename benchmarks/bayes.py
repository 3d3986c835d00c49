"""Two Bayesian posteriors with discrete latent variables: marginals against exact enumeration, at equal calls.

python benchmarks/bayes.py --results results/bayes.json                       everything, minutes of one core a run
python benchmarks/bayes.py --results results/bayes.json --only mixture --methods egm-sp gibbs-hmc --seeds 0
python benchmarks/bayes.py --results results/bayes.json --steps 60000 --device cuda          longer, on a GPU

*spike-slab*: regression of 40 observations on 12 predictors, two pairs of them strongly correlated, 4096 models.
*mixture*: ten observations of three overlapping components, 3¹⁰ assignments, each with its six relabellings.

A marginal is the posterior mean of a function f of the state; `bayes_marginals.py` lists them with their exact values.
EGM-SP estimates them from 10 000 weighted draws (`metrics`; `unweighted` are the same draws without weights), chains
from all states after warm-up. Every chain may make as many calls, of energy and gradient together, as EGM-SP with the
same seed made for training and one set of draws. This number is read from the file of results, so methods may be run
one by one. The floor is the error of 10 000 exact draws. NumPyro's samplers (mixed-hmc, nuts-gibbs) need
`egm[numpyro]`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

import egm
from bayes_marginals import PROBLEMS, Estimate, Problem, errors, floors, of_chains, of_draws, summarised
from egm.baselines import numpyro_chains
from egm.baselines.numpyro_chains import Algorithm
from egm.mcmc import HMC, MALA, Alternate, Chains, Gibbs, Kernel, run
from egm.runs.environment import commit, hardware
from egm.util.files import write_json
from egm.util.seeds import derive_seed

DRAWS = 10_000
REPEATS = 5  # sets of draws for the errors of EGM-SP
FLOOR_REPEATS = 200
CHAINS = 4
WARM_UP = 0.2  # share of a chain's steps
NUMPYRO_CALLS = 80  # of a step and chain, roughly: the number is only known afterwards
EVALUATION_SEED = 10_000

COMMON: dict[str, Any] = {"batch_size": 256, "inner_steps": 20, "refresh": 512, "buffer": 4096, "sample_steps": 128}
OPTIONS: dict[str, dict[str, Any]] = {
    "spike-slab": {
        "network": "SiteMLP(width=64, depth=2, site_width=16, site_depth=1, frequencies=0)",
        "learning_rate": 3e-3,
        "refresh_steps": 32,
    },
    "mixture": {"network": "ResidualMLP(width=64, depth=3)", "learning_rate": 2e-3, "refresh_steps": 16},
}
STEPS = 6000
KERNELS: dict[str, Callable[[egm.Target], Kernel]] = {
    "gibbs-mala": lambda target: Alternate([Gibbs(target), MALA(target)]),
    "gibbs-hmc": lambda target: Alternate([Gibbs(target), HMC(target, leapfrog_steps=5)]),
}
NUMPYRO = ("mixed-hmc", "nuts-gibbs")
METHODS = ("egm-sp", *KERNELS, *NUMPYRO)


def train_and_judge(problem: Problem, seed: int, *, steps: int, device: str) -> dict[str, Any]:
    """Train EGM-SP; return its cost, and its errors over several sets of draws."""
    target = problem.target
    target.energy_calls = target.score_calls = 0
    began = time.perf_counter()
    options = {**COMMON, **OPTIONS[problem.name]}
    sampler = egm.fit(target, "egm-sp", steps=steps, seed=seed, device=device, progress=False, **options)
    seconds, calls, scores = time.perf_counter() - began, target.energy_calls, target.score_calls
    began = time.perf_counter()
    sets = [sampler.sample(DRAWS, seed=derive_seed(EVALUATION_SEED + seed, i)) for i in range(REPEATS)]
    draw_seconds = (time.perf_counter() - began) / REPEATS
    weighted = [of_draws(problem, draws) for draws in sets]
    raw = [of_draws(problem, egm.Draws(target.space, draws.state)) for draws in sets]
    first = sets[0]
    return {
        "n": DRAWS,
        "repeats": REPEATS,
        "metrics": summarised([errors(problem, estimate) for estimate in weighted]),
        "unweighted": summarised([errors(problem, estimate) for estimate in raw]),
        "marginals": recorded(problem, weighted[0]),
        "ess": sum(draws.ess for draws in sets) / REPEATS,
        "log_z": first.log_z,
        "log_z_stderr": first.log_z_stderr,
        "elbo": first.elbo,
        "eubo": first.eubo,
        "problems": first.problems(),
        "train_seconds": round(seconds, 2),
        "draw_seconds": round(draw_seconds, 2),
        "steps": steps,
        "energy_calls": calls,
        "score_calls": scores,
        "calls": calls + scores + DRAWS,
        "eval_energy_calls": sum(draws.energy_calls for draws in sets),
        "options": options,
    }


def run_chains(problem: Problem, method: str, seed: int, calls: int) -> dict[str, Any]:
    """Run chains with (about) this number of calls; return the errors of their averages."""
    target = problem.target
    if method in NUMPYRO:
        warmup = max(50, round(WARM_UP * calls / (CHAINS * NUMPYRO_CALLS)))
        chains = numpyro_chains.run(
            target, algorithm=cast(Algorithm, method), chains=CHAINS, warmup=warmup, calls=calls, seed=seed
        )
    else:
        kernel = KERNELS[method](target)
        steps = calls // (CHAINS * calls_of_a_step(target, kernel))
        warmup = round(WARM_UP * steps)
        chains = run(target, kernel, chains=CHAINS, warmup=warmup, steps=steps - warmup, seed=seed)
    estimate = of_chains(problem, chains)
    return {
        "n": chains.energy.numel(),
        "repeats": 1,
        "metrics": summarised([errors(problem, estimate)]),
        "marginals": recorded(problem, estimate),
        "r_hat": estimate.r_hat,
        "chain_ess": estimate.ess,
        "acceptance": chains.acceptance,
        "report": chains.report,
        "train_seconds": round(chains.seconds, 2),
        "steps": len(chains.energy),
        "warmup": warmup,
        "chains": CHAINS,
        "energy_calls": chains.energy_calls,
        "score_calls": chains.score_calls,
        "calls": chains.energy_calls + chains.score_calls,
    }


def calls_of_a_step(target: egm.Target, kernel: Kernel) -> int:
    """Return the calls of energy and gradient of a step of one chain, including the energy of the kept draw."""
    chains: Chains = run(target, kernel, chains=1, warmup=0, steps=1)
    return chains.energy_calls + chains.score_calls


def recorded(problem: Problem, estimate: Estimate) -> dict[str, dict[str, list[float]]]:
    """Return each marginal with its standard error and its exact value."""
    parts = {
        name: {"mean": mean, "stderr": estimate.stderr[name], "exact": problem.exact[name]}
        for name, mean in estimate.mean.items()
    }
    return {name: {key: [round(v, 5) for v in x.tolist()] for key, x in part.items()} for name, part in parts.items()}


def line(record: dict[str, Any]) -> str:
    """Return a run in a line: calls, and each error with its multiple of the floor."""
    shown = "  ".join(f"{k} {v['mean']:.4f} ({v['mean'] / v['floor']:.1f})" for k, v in record["metrics"].items())
    ess = "" if record.get("ess") is None else f"ESS {record['ess']:.2f} "
    return (
        f"{record['problem']:<11}{record['method']:<11}{record['seed']:<3}{record['calls']:>8} calls "
        f"{record['train_seconds']:>6.0f} s  {ess}{shown}"
    )


def main() -> int:
    """Read the command line and add a record to the file for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="file of records; runs in it are not repeated")
    parser.add_argument("--only", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS, help="gradient steps of EGM-SP")
    parser.add_argument("--device", default="cpu", help="device of EGM-SP; chains run on the CPU")
    values = parser.parse_args()
    held = json.loads(values.results.read_text(encoding="utf-8")) if values.results.exists() else []
    records = {(r["problem"], r["method"], r["seed"]): r for r in held}
    for name in values.only:
        problem = PROBLEMS[name]()
        floor = floors(problem, DRAWS, repeats=FLOOR_REPEATS, seed=EVALUATION_SEED)
        for seed, method in ((seed, method) for seed in values.seeds for method in METHODS if method in values.methods):
            if (name, method, seed) in records:
                continue
            if method == "egm-sp":
                found = train_and_judge(problem, seed, steps=values.steps, device=values.device)
            elif (name, "egm-sp", seed) not in records:
                parser.error(f"{method} makes as many calls as egm-sp, which {values.results} does not hold yet")
            else:
                found = run_chains(problem, method, seed, records[name, "egm-sp", seed]["calls"])
            for key in ("metrics", "unweighted"):
                for metric, score in found.get(key, {}).items():
                    score["floor"] = floor[metric]
            records[name, method, seed] = {
                "problem": name, "target": repr(problem.target), "method": method, "role": "main", "overrides": {},
                "recipe": None, "seed": seed, **found, "resampled": None, "log_z_exact": problem.target.log_z,
                "concurrent": 1, "symmetries": [], "dtype": "float32",
                "hardware": hardware(values.device if method == "egm-sp" else "cpu"), "torch": torch.__version__,
                "commit": commit(), "command": shlex.join(["python", *sys.argv]),
            }  # fmt: skip
            order = sorted(records, key=lambda key: (key[0], METHODS.index(key[1]), key[2]))
            write_json(values.results, [records[key] for key in order])
            print(line(records[name, method, seed]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
