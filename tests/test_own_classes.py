"""Nothing looks at the class of a path or a process.

Copies of the library's classes that do not derive from them train, draw and weigh bit by bit the same.
"""

import inspect

import pytest
import torch

import egm
from egm import paths, processes
from egm.config.registry import register
from egm.networks import Preconditioned
from egm.paths import Path, ProductPath
from egm.spaces.variables import Real
from support.registries import kept
from support.training import fit

COPIED = (
    *(processes.DenoisingProcess, processes.BridgingProcess, processes.Flow, processes.Diffusion, processes.Jump),
    *(processes.DiscreteJump, paths.CondOT, paths.VE, paths.Masked, paths.Uniform),
)
MIXED = egm.Target(
    egm.Space(x=egm.Real(2), s=egm.Categorical(2, shape=3)),
    lambda x, s: 0.5 * (x - s[..., :2]).square().sum(-1) + 0.3 * s.sum(-1),
)
REALS = egm.Target(egm.Space(x=egm.Real(2)), lambda x: (x.square() - 1).square().sum(-1))
SYMBOLS = egm.targets.Ising(2, 0.4)
QUICK = {
    **{"steps": 4, "batch_size": 16, "refresh": 16, "inner_steps": 2, "buffer": 64, "sample_steps": 6},
    **{"network": "MLP(width=8)", "seed": 5, "progress": False, "device": "cpu"},
}


def copies():
    """Compiles each class again from its source, on top of the other copies, under another name."""
    made = {}
    for kind in COPIED:
        name, names = f"Own{kind.__name__}", {**vars(inspect.getmodule(kind)), **made}
        exec("from __future__ import annotations\n" + inspect.getsource(kind).replace(kind.__name__, name, 1), names)
        made[kind.__name__] = names[name]
    return made


@pytest.fixture(scope="module", autouse=True)
def own():
    made = copies()
    assert not any(issubclass(copy, COPIED) for copy in made.values())
    with kept():
        for copy in made.values():
            if not inspect.isabstract(copy):
                register(copy)
        yield made


CASES = {
    "flow": (MIXED, "egm", {"x": "VE", "s": "Masked"}, {"x": "Flow"}, {"proposals": 16}),
    "generator": (MIXED, "egm", {"x": "VE", "s": "Uniform"}, {"x": "Diffusion"},
                  {"proposals": 16, "real_loss": "generator"}),
    "heun": (MIXED, "egm", {"x": "CondOT", "s": "Uniform"}, {"x": "Flow"}, {"proposals": 16, "solver": "heun"}),
    "jump": (MIXED, "egm", {"x": "CondOT", "s": "Uniform"}, {"x": "Jump(bins=8)"}, {"proposals": 16}),
    "centred": (MIXED, "egm-bs", {"x": "CondOT", "s": "Masked"}, {"x": "Flow"},
                {"proposals": 16, "estimator": "centred", "proposal": "sampler"}),
    "single sites": (MIXED, "egm-bs", {"x": "VE", "s": "Masked"}, {"x": "Diffusion"},
                     {"proposals": 16, "bootstrap": "single-site"}),
    "symbols alone": (SYMBOLS, "egm-bs", {"s": "Masked"}, {}, {"proposals": 16, "bootstrap": "single-site"}),
    "self-proposal": (MIXED, "egm-sp", {"x": "CondOT", "s": "Masked"}, {"x": "Diffusion"}, {}),
    "self-proposal of a flow": (MIXED, "egm-sp", {"x": "VE", "s": "Uniform"}, {"x": "Flow"}, {}),
    "scores": (REALS, "idem", {"x": "VE"}, {"x": "Diffusion"}, {"proposals": 16}),
    "energy": (REALS, "bnem", {"x": "VE"}, {"x": "Flow"}, {"proposals": 16}),
}  # fmt: skip


def draws(target, method, parts, follow, options, *, prefix=""):
    follow = {**dict.fromkeys(target.space.categorical, "DiscreteJump"), **follow}
    named = [{name: prefix + text for name, text in given.items()} for given in (parts, follow)]
    sampler = fit(target, method, paths=named[0], processes=named[1], **{**QUICK, **options})
    return sampler, sampler.sample(40, seed=1)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_copies_give_the_same_numbers(case):
    sampler, found = draws(*case)
    other, same = draws(*case, prefix="Own")
    assert type(other.path["s" if "s" in other.space else "x"]).__name__.startswith("Own")
    for name, value in found.state.items():
        assert torch.equal(value, same.state[name])
    reason = sampler.why_unweighted()
    assert other.why_unweighted() == (reason and reason.replace("Jump", "OwnJump"))
    assert (found.log_weights is None) == (same.log_weights is None)
    if found.log_weights is not None and same.log_weights is not None:
        assert torch.equal(found.log_weights, same.log_weights)
    assert sampler.t_min == other.t_min


def test_copies_are_refused_where_the_originals_are():
    tight = {"proposals": 16, "memory": 2**16}
    for prefix in ("", "Own"):
        with pytest.raises(ValueError, match=rf"egm-bs cannot train the {prefix}Jump of 'x'.*use method='egm'"):
            draws(REALS, "egm-bs", {"x": "CondOT"}, {"x": "Jump"}, {}, prefix=prefix)
        with pytest.raises(ValueError, match=r"estimator='scores' averages .*'x' jumps"):
            draws(REALS, "egm", {"x": "CondOT"}, {"x": "Jump"}, {"estimator": "scores"}, prefix=prefix)
        with pytest.raises(ValueError, match=r"solver 'heun' .*there is none"):
            draws(REALS, "egm", {"x": "CondOT"}, {"x": "Diffusion"}, {"solver": "heun"}, prefix=prefix)
        with pytest.raises(ValueError, match=r"16 proposals for this batch take 98304"):  # one number for each bin
            draws(REALS, "egm", {"x": "CondOT"}, {"x": "Jump(bins=8)"}, tight, prefix=prefix)
        with pytest.raises(ValueError, match=r"single-site' reveals masked sites and no variable"):
            draws(REALS, "egm-bs", {"x": "CondOT"}, {"x": "Flow"}, {"bootstrap": "single-site"}, prefix=prefix)
        with pytest.raises(ValueError, match=r"bnem follows the gradient of an energy"):
            draws(REALS, "bnem", {"x": "VE"}, {"x": "Jump"}, {}, prefix=prefix)
        with pytest.raises(ValueError, match=r"egm-sp trains on weighted draws.*Jump of 'x' has no step density"):
            draws(REALS, "egm-sp", {"x": "CondOT"}, {"x": "Jump"}, {}, prefix=prefix)


class Still(Path[Real]):
    """A path of reals that is not Gaussian."""

    def __init__(self, variable):
        self.variable = variable

    sample = log_prob = proposer = log_normaliser = average = denoised = prior_log_prob = None  # type: ignore[assignment]


def test_paths_of_reals_are_gaussian():
    space = egm.Space(x=egm.Real(2))
    with pytest.raises(TypeError, match=r"path of 'x' must be Gaussian \(CondOT, VE, VP\), got .*Still"):
        Preconditioned(torch.nn.Identity(), ProductPath(space, {"x": Still(space.real["x"])}))
