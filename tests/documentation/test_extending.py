"""The skeletons of docs/extending run and obey the laws that their pages name; broken copies of them do not.

The checks are those of the library itself: the test modules of paths and processes are called as functions.
"""

import itertools
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import egm
from egm.cli import main
from egm.config.targets import make_target
from egm.methods import Trained
from egm.methods.registry import METHODS, register_method
from egm.paths import CondOT, Masked
from egm.spaces.variables import Real
from egm.targets.guard import EnergyGuard
from paths import test_gaussian_paths as gaussian
from processes import test_bridges as bridges
from processes import test_forward_equation as forward
from processes import test_path_weights as weights
from support.cases import REALS, TIMES
from support.conformance import PROBLEMS, Cell
from support.marginals import TinyIsing
from support.oracles import assert_draws_match_energy
from support.registries import kept
from support.stats import assert_counts, assert_mean, z_limit
from support.training import assert_same_runs, interrupt_during
from test_conformance import LIMITS, SEED

PAGES = Path(__file__).parents[2] / "docs" / "extending"
VARIABLES = {name: REALS[name] for name in ("scalar", "2d", "centred-line")}
END = "# Use it.\n"


def block(name: str) -> str:
    """The one Python block of a page."""
    (found,) = re.findall(r"```python\n(.*?)```", (PAGES / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL)
    return found


def page(name: str) -> Any:
    """A fixture: the namespace of a page's block after it ran; its names stay registered for this module."""

    @pytest.fixture(scope="module", name=name)
    def run():
        with kept():
            namespace: dict[str, Any] = {}
            exec(compile(block(name), f"docs/extending/{name}.md", "exec"), namespace)
            yield namespace

    return run


target, path, process, method = map(page, ("target", "path", "process", "method"))


def fails(check, *arguments, **options) -> None:
    with pytest.raises(AssertionError):
        check(*arguments, **options)


def test_pages_have_one_skeleton_each_and_are_linked():
    names = sorted(file.stem for file in PAGES.glob("*.md"))
    assert names == ["index", "method", "path", "process", "target"]
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    for name in names[1:]:
        assert f"({name}.md)" in index
        assert END in block(name)


# ---------------------------------------------------------------------- target


def all_states(ring, *, masked=False):
    return torch.cartesian_prod(*[torch.arange(ring.states + masked)] * ring.size)


def loop_energy(ring, s):
    """From the definition, term by term; terms with a masked site are left out."""
    angle, energy = [2 * math.pi * x / ring.states for x in s], 0.0
    for i, j in zip(range(ring.size), [*range(1, ring.size), 0], strict=True):
        if s[i] != ring.states:
            energy -= ring.field * math.cos(angle[i])
            energy -= ring.beta * math.cos(angle[i] - angle[j]) if s[j] != ring.states else 0
    return energy


def assert_energies(ring):
    s, hidden = all_states(ring), all_states(ring, masked=True)
    assert ring.energy(s=s).tolist() == pytest.approx([loop_energy(ring, x) for x in s.tolist()], abs=1e-5)
    assert ring.partial_energy(s=hidden).tolist() == pytest.approx(
        [loop_energy(ring, x) for x in hidden.tolist()], abs=1e-5
    )


def assert_log_z(ring):
    energies = torch.tensor([loop_energy(ring, x) for x in all_states(ring).tolist()], dtype=torch.float64)
    assert ring.log_z == pytest.approx(float(torch.logsumexp(-energies, 0)), abs=1e-12)


def assert_draws(ring):
    s = all_states(ring)
    law = torch.softmax(-torch.tensor([loop_energy(ring, x) for x in s.tolist()], dtype=torch.float64), 0)
    drawn = ring.exact_sample(20_000, seed=1)["s"]
    place = torch.tensor([ring.states**k for k in reversed(range(ring.size))])
    assert_counts(torch.bincount((drawn * place).sum(-1), minlength=len(s)), law)


def test_the_target_is_what_enumeration_says(target):
    for arguments in ({"size": 2, "states": 3}, {"size": 4, "states": 3, "beta": 1.3, "field": -0.4}):
        ring = target["ClockRing"](**arguments)
        assert_energies(ring)
        assert_log_z(ring)
        assert_draws(ring)
        assert_draws_match_energy(ring, ring.exact_sample(5000, seed=2))
        assert repr(make_target(repr(ring))) == repr(ring)
    assert math.isfinite(target["ClockRing"](2000, beta=3.0).log_z)


def test_broken_targets_are_found(target):
    ring = target["ClockRing"]

    class Open(ring):  # without the bond from the last site to the first
        def _terms(self, s, known):
            angle = 2 * math.pi / self.states * s
            return super()._terms(s, known) + self.beta * torch.cos(angle[..., 0] - angle[..., -1]) * known[..., 0]

        def _log_z(self):
            powers, log_c = self._transfer
            return float(powers[-2].sum().log()) + (self.size - 1) * log_c

        def _exact_sample(self, n, seed):
            powers, _ = self._transfer
            generator = torch.Generator().manual_seed(seed)
            s = [torch.multinomial(powers[-1].diagonal(), n, replacement=True, generator=generator)]
            for _ in range(self.size - 1):
                s.append(torch.multinomial(powers[1][s[-1]], 1, generator=generator).squeeze(1))
            return {"s": torch.stack(s, -1)}

    class Peeking(ring):  # counts bonds with masked sites
        def _partial_energy(self, **state):
            return self._ring_energy(state["s"])

    broken = Open(4, states=3, beta=1.3, field=-0.4)
    for check in (assert_energies, assert_log_z, assert_draws):
        fails(check, broken)
    good = ring(4, states=3, beta=1.3, field=-0.4)
    fails(assert_draws_match_energy, good, broken.exact_sample(5000, seed=2))
    fails(assert_energies, Peeking(4, states=3))


def test_the_target_trains_and_its_runs_make_it_again(target, tmp_path):
    draws, untrained = target["draws"], egm.fit(target["target"], steps=1, learning_rate=1e-12, progress=False)
    assert draws.ess > 2 * untrained.sample(2000, seed=1).ess
    assert abs(draws.log_z - target["target"].log_z) < z_limit() * draws.log_z_stderr
    target["sampler"].save(tmp_path / "run")
    again = egm.load(tmp_path / "run")
    assert repr(again.target) == repr(target["target"])
    assert again.sample(2000, seed=1).log_z == draws.log_z


# ---------------------------------------------------------------------- path


def assert_precise(make):
    for t, r in (*TIMES, (0.6, 0.6001), (0.999, 1.0), (0.9999, 1.0)):
        gaussian.test_variance_has_no_cancellation_error(make(Real(())), t, r)
    for t in (0.05, 0.4, 0.8):
        gaussian.test_kernels_over_short_times_spread_by_the_diffusion(make, t)


def assert_kernels(make):
    for part in map(make, VARIABLES.values()):
        gaussian.test_log_prob_is_normalised(part)
        gaussian.test_samples_and_proposals_follow_their_kernels(part, 0.3, 0.55)
        gaussian.test_times_broadcast_over_the_batch(part)
        gaussian.test_prior_log_prob_is_the_integral_over_the_reference_law(part, 0.4)
        for t, r in TIMES:
            gaussian.test_proposal_integrates_to_one_against_its_normaliser(part, t, r)


def assert_composes(make):
    for part, times in itertools.product(map(make, VARIABLES.values()), [(0.2, 0.5, 0.9), (0.1, 0.4, 1.0)]):
        gaussian.test_chapman_kolmogorov(part, *times)


def assert_forward(make, follow):
    for part, (t, r) in itertools.product(map(make, VARIABLES.values()), TIMES):
        forward.test_forward_equation_of_smooth_processes(part, follow, t, r)
        if r < 1:
            forward.test_smooth_generators_do_not_depend_on_r(part, follow, t, r)


def test_the_path_obeys_the_laws(path):
    make = path["CosineOT"]
    t = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    assert make(Real(())).alpha(t).tolist() == pytest.approx([0, 0.5, 1])
    assert make(Real(())).variance(t).tolist() == pytest.approx([1, 0.25, 0])
    assert float(make(Real(())).variance(t)[-1]) == 0
    assert_precise(make)
    assert_kernels(make)
    assert_composes(make)
    for follow in (egm.processes.Flow, egm.processes.Diffusion):
        assert_forward(make, follow)
    weights.test_mean_weight_of_the_widened_diffusion(make, Real(()))


def test_broken_paths_are_found(path):
    good = path["CosineOT"]

    class Cancelling(good):  # right, but not in single precision
        def variance(self, t, r=1.0):
            r = torch.as_tensor(r, dtype=t.dtype)
            a = self.alpha(t) / self.alpha(r)
            return (1 - self.alpha(t)).square() - a.square() * (1 - self.alpha(r)).square()

    class Slower(good):  # the derivative of another schedule
        def alpha_dot(self, t):
            return 0.9 * super().alpha_dot(t)

    class Forgetful(good):  # p_{t|r} has the variance of p_{t|1}
        def variance(self, t, r=1.0):
            return super().variance(t)

    assert_composes(Cancelling)
    fails(assert_precise, Cancelling)
    assert_composes(Slower)
    fails(assert_forward, Slower, egm.processes.Flow)
    fails(assert_composes, Forgetful)


# ---------------------------------------------------------------------- process


def assert_bridges(follow):
    for part in map(CondOT, VARIABLES.values()):
        for t, r in ((0.02, 0.9), (0.15, 1.0), (0.6, 0.61)):
            bridges.test_bridges_keep_to_the_path(part, follow, t, r)
        bridges.test_bridges_compose(part, follow, 0.2, 0.5, 0.9)
        bridges.test_bridges_over_short_times_move_like_the_generator(part, follow, 0.4)


def assert_unbiased(follow):
    part = CondOT(Real(()))
    z = weights.quad(lambda s: math.exp(-((s * s - 1) ** 2)), -6, 6)[0]
    assert_mean(weights.simulated_weights(part, follow(part), (0.0, 0.5, 1.0)), z, "E[w]")


def test_the_process_obeys_the_laws(process):
    for noise in (0.3, 1.7):

        def follow(part, noise=noise):
            return process["NoisyDiffusion"](part, noise=noise)

        assert_forward(CondOT, follow)
        assert_bridges(follow)
        assert_unbiased(follow)
    part, t = CondOT(Real(2)), torch.tensor([0.2, 0.7])
    x_t, x_1 = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(0))
    same, diffusion = process["NoisyDiffusion"](part, noise=1.0), egm.processes.Diffusion(part)
    torch.testing.assert_close(same.bridge(x_t, x_1, t, 0.9), diffusion.bridge(x_t, x_1, t, 0.9))
    nearly, flow = process["NoisyDiffusion"](part, noise=1e-6), egm.processes.Flow(part)
    torch.testing.assert_close(nearly.bridge(x_t, x_1, t, 0.9)[0], flow.step(x_t, x_1, t, 0.9), rtol=1e-4, atol=1e-4)


def test_broken_processes_are_found(process):
    good = process["NoisyDiffusion"]

    class Uncorrected(good):  # noise, but the drift of Diffusion
        def conditional(self, x_t, x_r, t, r=1.0):
            drift = egm.processes.Diffusion(self.path).conditional(x_t, x_r, t, r).drift
            return replace(super().conditional(x_t, x_r, t, r), drift=drift)

    class Wide(good):  # the bridge has too much noise: still unbiased, off the path
        def bridge(self, x_t, x_1, t, r):
            mean, variance, b = super().bridge(x_t, x_1, t, r)
            return mean, 1.2 * variance, b

    class Elsewhere(good):  # the density of a narrower step than the one that is taken
        def log_step(self, x_r, x_t, prediction, t, r, *, error=0.0):
            return super().log_step(x_r, x_t, prediction, t, r, error=0.5 * error)

    assert_unbiased(Uncorrected)
    fails(assert_forward, CondOT, Uncorrected)
    assert_unbiased(Wide)
    fails(assert_bridges, Wide)
    assert_bridges(Elsewhere)
    fails(assert_unbiased, Elsewhere)


@pytest.mark.slow
def test_path_and_process_train_to_the_exact_law(path, process):
    limit = LIMITS["continuous egm: Diffusion on CondOT"]
    cell = Cell("continuous", "egm", {"x": ("NoisyDiffusion(noise=0.5)", "CosineOT")})
    assert cell.score(cell.train(SEED), SEED) < limit
    assert cell.score(cell.train(SEED, steps=1, learning_rate=1e-12), SEED) > limit


# ---------------------------------------------------------------------- method


class ExactDenoiser(nn.Module):
    """Logits of p(x_1 | x_t) by enumeration, raised to a power."""

    def __init__(self, oracle):
        super().__init__()
        self.oracle, self.power = oracle, nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, state, t):
        tables = self.oracle.prediction(state, t.double())
        return {name: self.power * torch.log(table.clamp(min=1e-300)) for name, table in tables.items()}


def loss_at_the_exact_denoiser(method, energy_of=None, power=1.0):
    oracle = TinyIsing(Masked, 0.4)
    network, given = ExactDenoiser(oracle), EnergyGuard(energy_of or oracle.target)
    network.power.data.fill_(power)
    made = method["LogVariance"](
        given, oracle.path, oracle.processes, network, error=None, options=method["LogVarianceOptions"]()
    )
    found = made.losses({"s": oracle.states}, first=False, generator=torch.Generator().manual_seed(0))
    return found["loss"], network.power


def test_the_loss_vanishes_at_the_exact_denoiser_and_nowhere_near(method):
    assert float(loss_at_the_exact_denoiser(method)[0].detach()) < 1e-9  # energies are in single precision
    assert float(loss_at_the_exact_denoiser(method, power=0.8)[0].detach()) > 1e-2
    assert float(loss_at_the_exact_denoiser(method, egm.targets.Ising(2, 0.5))[0].detach()) > 1e-2


def test_the_gradient_is_that_of_a_difference(method):
    loss, power = loss_at_the_exact_denoiser(method, power=0.8)
    loss.backward()
    above, below = (float(loss_at_the_exact_denoiser(method, power=0.8 + h)[0].detach()) for h in (1e-4, -1e-4))
    assert power.grad is not None
    assert float(power.grad) == pytest.approx((above - below) / 2e-4, rel=1e-5)


QUICK = {"network": "MLP(width=32)", "batch_size": 128, "learning_rate": 1e-2, "ema": 0.98, "refresh": 500}


def distance(name, seed=SEED, **options):
    problem = PROBLEMS["discrete"]
    sampler = egm.fit(problem.target, name, seed=seed, device="cpu", progress=False, **{**QUICK, **options})
    return problem.distance(sampler.sample(4000, seed=10_000 + seed).state)


def test_the_method_trains_to_the_exact_law_and_its_controls_do_not(method):
    limit = LIMITS["discrete egm: DiscreteJump on Masked; symbol_loss=cross-entropy"]

    class Blind(method["LogVariance"]):  # every energy is the same
        def __init__(self, energy, *parts, **options):
            flat = egm.Target(energy.target.space, lambda s: torch.zeros(s.shape[:-2]))
            super().__init__(EnergyGuard(flat), *parts, **options)

    kind = METHODS["log-variance"]
    assert isinstance(kind, Trained)
    register_method("blind", replace(kind, method=Blind))
    assert distance("log-variance", steps=200) < limit
    assert distance("log-variance", steps=1, learning_rate=1e-12) > limit
    assert distance("blind", steps=100) > limit
    with pytest.raises(ValueError, match=r"log-variance trains symbols, and \['x'\] are real; use method='egm-sp'"):
        egm.fit(PROBLEMS["continuous"].target, "log-variance", steps=1, progress=False)


TINY = {"network": "MLP(width=8)", "batch_size": 8, "refresh": 16, "inner_steps": 2, "path_steps": 3}


@pytest.mark.usefixtures("method")
def test_runs_of_the_method_are_resumed_and_loaded(tmp_path, monkeypatch):
    target = egm.targets.Ising(2, 0.3)
    options = {**TINY, "steps": 7, "seed": 3, "device": "cpu", "progress": False}
    whole = egm.fit(target, "log-variance", out=tmp_path / "whole", **options)
    interrupt_during(monkeypatch, 4)
    egm.fit(target, "log-variance", out=tmp_path / "parts", checkpoint_every=3, **options)
    egm.resume(tmp_path / "parts", progress=False)
    assert_same_runs(tmp_path / "whole", tmp_path / "parts")
    again = egm.load(tmp_path / "parts").sample(50, seed=1)
    assert torch.equal(again["s"], whole.sample(50, seed=1)["s"])


MODULE = """

def make_target():
    return egm.targets.Ising(2, 0.3)
"""


def test_the_command_line_knows_a_method_that_the_module_of_the_target_registers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module_with_a_method.py").write_text(block("method").partition(END)[0] + MODULE, encoding="utf-8")
    own = ["--target", "module_with_a_method:make_target"]
    options = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
    run = ["train", *own, "--method", "log-variance", *options, "--evaluate", "false", "--progress", "false"]
    with kept():
        METHODS.pop("log-variance", None)
        assert main([*run, "--steps", "4", "--out", "run"]) == 0
    with kept():
        METHODS.pop("log-variance", None)
        monkeypatch.delitem(sys.modules, "module_with_a_method")
        assert main(["train", "--resume", "run", "--steps", "6", "--evaluate", "false"]) == 0
        assert main(["sample", "run", *own, "-n", "50"]) == 0
    METHODS.pop("log-variance", None)
    capsys.readouterr()
    assert main(["sample", "run", "-n", "50"]) == 2
    assert re.search("'log-variance' is not known here.*--target module:function", capsys.readouterr().err)
