"""Recipes: each one builds, the paper's have its settings and numbers, and mistakes in a file are named."""

import pytest

from egm import recipes
from egm.baselines.chains import Chains
from egm.config.targets import make_target
from egm.methods.registry import METHODS
from support.training import trainer_of

COLUMNS = [
    *("ising5-b02", "ising5-b04", "ising10-b02", "ising10-b04", "ising15-b028"),
    *("gbrbm", "jointdw4", "jointmog", "manywell"),
]

# From the paper: hidden units of EGM and EGM-BS, layers, learning rate of the energy model, ε, largest norm of the
# regression target, largest energy estimate.
HYPER_PARAMETERS = {
    "ising5-b02": (256, 256, 3, 2e-3, 0.05, None, None),
    "ising5-b04": (256, 256, 3, 1e-3, 0.05, None, None),
    "ising10-b02": (1024, 512, 3, 1e-3, 0.05, None, None),
    "ising10-b04": (256, 2048, 3, 1e-3, 0.05, None, None),
    "gbrbm": (128, 128, 6, 1e-3, 0.01, 20, 100),
    "jointdw4": (128, 128, 6, 1e-3, 0.01, 100, 1000),
    "jointmog": (128, 128, 6, 1e-3, 0.01, 100, 1000),
}
# From the paper's tables: (mean, standard deviation) of EGM and of EGM-BS.
PUBLISHED = {
    "ising5-b02": ({"e_w1": (0.20, 0.06), "m_w1": (0.02, 0.01)}, {"e_w1": (0.10, 0.06), "m_w1": (0.02, 0.01)}),
    "ising5-b04": ({"e_w1": (3.73, 0.39), "m_w1": (0.24, 0.02)}, {"e_w1": (0.60, 0.12), "m_w1": (0.04, 0.01)}),
    "ising10-b02": ({"e_w1": (0.84, 0.07), "m_w1": (0.02, 0.00)}, {"e_w1": (0.39, 0.34), "m_w1": (0.06, 0.07)}),
    "ising10-b04": ({"e_w1": (19.94, 0.69), "m_w1": (0.36, 0.01)}, {"e_w1": (2.51, 0.16), "m_w1": (0.24, 0.01)}),
    "ising15-b028": ({"e_w1": (0.89, None), "m_w1": (0.06, None)}, {"e_w1": (0.65, None), "m_w1": (0.04, None)}),
    "gbrbm": ({"e_w1": (0.33, 0.02), "x_w2": (0.63, 0.10)}, {"e_w1": (0.20, 0.15), "x_w2": (0.61, 0.09)}),
    "jointdw4": ({"e_w1": (2.45, 0.07)}, {"e_w1": (1.65, 0.96)}),
    "jointmog": ({"e_w1": (8.83, 0.12)}, {"e_w1": (1.20, 0.32)}),
    "manywell": ({}, {"e_w1": (3.30, None), "x_w2": (7.07, None)}),
}
# The same of its Gibbs sampler, 4 chains of 6000 steps, which the paper has for seven of the columns.
PUBLISHED_GIBBS = {
    "ising5-b02": {"e_w1": (0.10, 0.02), "m_w1": (0.06, 0.02)},
    "ising5-b04": {"e_w1": (0.71, 0.43), "m_w1": (0.23, 0.18)},
    "ising10-b02": {"e_w1": (0.53, 0.04), "m_w1": (0.04, 0.01)},
    "ising10-b04": {"e_w1": (5.29, 1.95), "m_w1": (0.29, 0.11)},
    "gbrbm": {"e_w1": (0.77, 0.03), "x_w2": (5.12, 0.21)},
    "jointdw4": {"e_w1": (4.80, 0.02)},
    "jointmog": {"e_w1": (7.76, 0.02)},
}


def test_every_column_of_the_tables_has_both_recipes():
    columns = [f"{folder}/{name}" for folder in ("fast", "paper") for name in COLUMNS]
    lattices = ("ising10-critical", "ising15-critical", "ising16-critical", "potts16-critical")
    beyond = ("dw4", "funnel", "gmm40", *lattices, "lj13")
    assert recipes.names() == sorted([*columns, *(f"fast/{name}" for name in beyond)])
    for name in columns:
        folder, column = name.split("/")
        own = ["egm-sp"] if folder == "fast" else ["gibbs"] if column in PUBLISHED_GIBBS else []
        assert recipes.methods(name)[: 2 + len(own)] == ["egm", "egm-bs", *own]


@pytest.mark.parametrize(
    ("name", "method"),
    [(n, method) for n in recipes.names() for method in recipes.methods(n) if METHODS[method].trains],
)
def test_every_recipe_builds(name, method):
    """Builds everything that `fit` builds before the first step."""
    recipe = recipes.load(name, method)
    assert recipe.pop("method") == method
    target = make_target(recipe.pop("target"))
    energy_network = recipe.get("energy_network")
    assert (energy_network is not None) == (method == "egm-bs")
    assert ("steps" in recipe) != ("time_limit" in recipe)
    parts = ("steps", "time_limit", "seed", "dtype", "paths", "processes", "network", "energy_network")
    given = {name: recipe.pop(name) for name in parts if name in recipe}
    trainer = trainer_of(target, method, options=recipe, **given)
    assert trainer.sampler.config["target"] == repr(target)
    assert ("energy_average" in trainer.method.modules()) == (method in ("egm-bs", "bnem"))


@pytest.mark.parametrize("name", PUBLISHED_GIBBS)
def test_the_papers_gibbs_sampler(name):
    recipe = recipes.load(f"paper/{name}", "gibbs")  # without the common options of methods with networks
    target = make_target(recipe.pop("target"))
    assert recipe == {"method": "gibbs", "chains": 4, "steps": 6000}
    gibbs = METHODS["gibbs"]
    assert isinstance(gibbs, Chains)
    kernel = gibbs.kernel(target, gibbs.chosen("gibbs", target.space, {"chains": 4}))
    assert repr(kernel).startswith("Alternate([Gibbs(" if target.space.real else "Gibbs(")
    assert recipes.published(f"paper/{name}", "gibbs") == PUBLISHED_GIBBS[name]


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("folder", ["paper", "fast"])
def test_published_numbers(folder, name):
    for method, expected in zip(("egm", "egm-bs"), PUBLISHED[name], strict=True):
        assert recipes.published(f"{folder}/{name}", method) == expected


@pytest.mark.parametrize("name", HYPER_PARAMETERS)
def test_the_papers_settings(name):
    width, wide, depth, energy_rate, epsilon, clip, clip_energy = HYPER_PARAMETERS[name]
    mixed = depth == 6
    body = "ResidualMLP" if mixed else "MLP"
    egm, bs = (recipes.load(f"paper/{name}", method) for method in ("egm", "egm-bs"))
    for recipe in (egm, bs):
        assert (recipe["batch_size"], recipe["proposals"], recipe["proposal"]) == (300, 2000, "flat")
        assert (recipe["refresh"], recipe["buffer"]) == (2000, 10_000)
        assert (recipe["learning_rate"], recipe["final_learning_rate"]) == (1e-3, 1e-5)
        assert (recipe["sample_steps"], recipe["solver"], recipe["ema"]) == (1000, "euler", 0)
        assert recipe["symbol_loss"] == "squared"
        assert recipe.get("clip_estimate") == clip
        assert recipe.get("real_loss") == ("generator" if mixed else None)
        assert (recipe.get("lambda_disc", 1.0), recipe.get("lambda_cont", 1.0)) == ((5.0, 1.0) if mixed else (1.0, 1.0))
        real = [path for path in recipe["paths"].values() if not path.startswith("Masked")]
        path = "VE(sigma_min=0.01, sigma_max=2.0)" if name == "jointmog" else "CondOT()"
        assert real == ([path] if mixed else [])
        assert list(recipe.get("processes", {}).values()) == (["flow"] if mixed else [])
    assert (egm["inner_steps"], egm["steps"]) == (100, 100 * 100)
    assert (bs["inner_steps"], bs["steps"]) == (1000, 100 * 1000)
    assert egm["network"] == f"{body}(width={width}, depth={depth})"
    assert bs["network"] == f"{body}(width={wide}, depth={depth})"
    assert (bs["epsilon"], bs["energy_learning_rate"], bs.get("clip_energy")) == (epsilon, energy_rate, clip_energy)
    assert (bs["energy_ema"], bs["energy_ema_start"]) == (0.99999, 0.5)
    assert (bs.get("time_weight"), egm.get("time_weight")) == ("t" if mixed else None, None)


def test_sections_go_over_the_common_one(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "target: GBRBM()\n"
        "common: {batch_size: 4, learning_rate: 1e-2, paths: {v: VP, h: Masked}}\n"
        "egm: {batch_size: 5, paths: {v: VE}}\n",
        encoding="utf-8",
    )
    expected = {"target": "GBRBM()", "method": "egm", "batch_size": 5, "learning_rate": 0.01}
    assert recipes.load(str(file), "egm") == {**expected, "paths": {"v": "VE", "h": "Masked"}}
    assert recipes.published(str(file), "egm") == {}
    with pytest.raises(ValueError, match="no section 'egm-bs'; it has egm"):
        recipes.load(str(file), "egm-bs")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("common: {}\n", "needs a target"),
        ("- 1\n", "needs a target"),
        ("target: [\n", "not YAML"),
        ("target: GBRBM()\nregm: {steps: 1}\n", "did you mean 'egm'"),
        ("target: GBRBM()\negm: {stepz: 1}\n", "did you mean 'steps'"),
        ("target: GBRBM()\negm: {out: here}\n", "'out' is not an option"),
        ("target: GBRBM()\negm: 3\n", "must hold names and values"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, text, expected):
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=expected):
        recipes.load(str(file), "egm")


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'paper/jointdw4'"):
        recipes.load("paper/jointdw", "egm")
    with pytest.raises(ValueError, match="did you mean 'egm-bs'"):
        recipes.load("paper/jointdw4", "egm-bss")
