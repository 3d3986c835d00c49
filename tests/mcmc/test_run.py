"""Kernels in alternation, the runner's draws, counts and progress lines, and what bad input is told."""

import math
import sys

import pytest
import torch

from egm import Real, Space, Target
from egm.mcmc import HMC, MALA, Alternate, Gibbs, ParallelTempering, SwendsenWang, run
from support.mcmc_laws import CHAINS, Banana, Lattice, Mixture, Table, assert_invariant, generator
from support.stats import assert_mean

# ---------------------------------------------------------------------- alternation


@pytest.mark.parametrize("kind", [MALA, HMC])
def test_alternation_is_invariant_and_moves(kind):
    model = Mixture()
    kernel = Alternate([Gibbs(model.target), kind(model.target, step_size=0.5)])
    assert_invariant(kernel, model.exact, model.features)
    init = {"x": torch.full((4000, 1), -1.0), "s": torch.zeros(4000, 1, dtype=torch.int64)}
    chains = run(model.target, kernel, chains=4000, warmup=300, steps=1, init=init)
    assert_mean(chains.state["s"][-1], 0.7)
    assert_mean(chains.state["x"][-1], 0.3 * -1 + 0.7 * 2)
    size = chains.report[f"{kind.__name__} step size"]  # tuned by its own acceptance, not by the mean with Gibbs' one
    own = kind(model.target, step_size=size)
    _, acceptance = own.step(model.exact(CHAINS, 3), generator=generator(0))
    assert abs(float(acceptance.mean()) - own.target_acceptance) < 0.05


# ---------------------------------------------------------------------- run


def test_run_returns_draws_in_x_with_their_energies_and_counts():
    model = Mixture()
    kernel = Alternate([Gibbs(model.target), MALA(model.target)])
    chains = run(model.target, kernel, chains=6, warmup=5, steps=4, thin=3, seed=1)
    assert chains.state["x"].shape == (4, 6, 1)
    assert chains.state["s"].dtype == torch.int64
    assert torch.equal(chains.energy, model.energy(**chains.state))
    transitions = 5 + 4 * 3
    assert chains.score_calls == 6 * transitions * 2
    assert chains.energy_calls == 6 * (transitions * (2 + 2) + 4)
    again = run(model.target, kernel, chains=6, warmup=5, steps=4, thin=3, seed=1)
    assert torch.equal(chains.state["x"], again.state["x"])
    other = run(model.target, kernel, chains=6, warmup=5, steps=4, thin=3, seed=2)
    assert not torch.equal(chains.state["x"], other.state["x"])


def test_thinning_keeps_every_third_draw():
    model = Mixture()
    kernel = Alternate([Gibbs(model.target), MALA(model.target)])
    every = run(model.target, kernel, chains=6, warmup=5, steps=12, seed=1)
    third = run(model.target, kernel, chains=6, warmup=5, steps=4, thin=3, seed=1)
    assert torch.equal(every.state["x"][2::3], third.state["x"])


def test_progress_lines(capsys, monkeypatch):
    monkeypatch.setattr(sys.modules[run.__module__], "PROGRESS_SECONDS", 0.0)
    model = Mixture()
    run(model.target, Gibbs(model.target), chains=2, warmup=1, steps=2, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("mcmc warm-up: step 1 of 3, acceptance 1.00")
    assert lines[-1].startswith("mcmc sampling: step 3 of 3")


# ---------------------------------------------------------------------- bad input


def test_bad_input_says_what_to_do():
    mixture, banana, table = Mixture().target, Banana().target, Table().target
    with pytest.raises(ValueError, match="use HMC"):
        Gibbs(banana)
    with pytest.raises(ValueError, match=r"names holds \['x'\], but the categorical variables are \['s'\]"):
        Gibbs(mixture, names=["x"])
    with pytest.raises(ValueError, match="use Gibbs"):
        MALA(table)
    for option, value in (("leapfrog_steps", 0), ("step_size", 0.0), ("target_acceptance", 1.0), ("jitter", 1.0)):
        with pytest.raises(ValueError, match=option):
            HMC(banana, **{option: value})  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="coupling and site_energies, which"):
        SwendsenWang(table)
    with pytest.raises(ValueError, match="ferromagnetic coupling"):
        SwendsenWang(Lattice(2, -1.0, (0.0, 0.0)))
    for ladder in ([1.0], [0.9, 0.5], [1.0, 1.0], [1.0, 0.0]):
        with pytest.raises(ValueError, match="must start at 1 and decrease"):
            ParallelTempering(Gibbs(table), inverse_temperatures=ladder)
    with pytest.raises(ValueError, match=r"batch shape \[2, chains\]"):
        ParallelTempering(MALA(banana), inverse_temperatures=[1.0, 0.5]).step(
            {"x": torch.zeros(3, 4, 2)}, generator=generator(0)
        )
    with pytest.raises(ValueError, match="at least one kernel"):
        Alternate([])
    with pytest.raises(ValueError, match="different targets"):
        Alternate([Gibbs(mixture), MALA(banana)])
    with pytest.raises(ValueError, match="build it from this target"):
        run(mixture, MALA(banana), chains=1, warmup=0, steps=1)
    numbers = {"chains": 1, "warmup": 0, "steps": 1}
    for option, value in (("chains", 0), ("warmup", -1), ("steps", 0), ("thin", 0)):
        with pytest.raises(ValueError, match=f"{option} must be at least"):
            run(banana, MALA(banana), **{**numbers, option: value})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="init must hold 3 states"):
        run(banana, MALA(banana), chains=3, warmup=0, steps=1, init={"x": torch.zeros(2, 2)})


def test_chains_that_never_reach_the_support_are_an_error():
    target = Target(Space(x=Real(1)), lambda x: torch.where(x < 100, math.inf, x).sum(-1))
    with pytest.raises(ValueError, match=r"no finite energy after warm-up.*pass init"):
        run(target, MALA(target), chains=3, warmup=2, steps=1)


def test_run_adapts_during_warm_up_only():
    """Adapting while sampling would break invariance, so `run` may not do it."""
    target = Target(Space(x=Real(2)), lambda x: 0.5 * x.square().sum(-1))
    kernel = HMC(target, leapfrog_steps=2)
    calls = []
    adapt = kernel.adapt
    kernel.adapt = lambda acceptance: (calls.append(1), adapt(acceptance))[1]  # type: ignore[method-assign]
    run(target, kernel, chains=4, warmup=7, steps=5, thin=2)
    assert len(calls) == 7


def test_replicas_cannot_be_alternated():
    target = Target(Space(x=Real(2)), lambda x: 0.5 * x.square().sum(-1))
    tempering = ParallelTempering(HMC(target), inverse_temperatures=[1.0, 0.5])
    with pytest.raises(ValueError, match="put Alternate inside ParallelTempering"):
        Alternate([tempering, HMC(target)])
