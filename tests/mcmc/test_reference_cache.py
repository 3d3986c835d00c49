"""References: converged or refused, cached outside the repository, read back unchanged."""

import dataclasses
import json
import zipfile

import numpy as np
import pytest
import torch

from egm import Categorical, Real, Space, Target
from egm.mcmc import (
    HMC,
    MALA,
    Alternate,
    ConvergenceError,
    Gibbs,
    Reference,
    ReferencePlan,
    load_or_make,
    make_reference,
    summary,
)
from egm.mcmc.reference import cache_directory, cache_path


class Toy(Target):
    """A Gaussian whose mean is a symbol's, with a scalar observable."""

    def __init__(self) -> None:
        super().__init__(Space(x=Real(2), s=Categorical(2, shape=())), self.toy_energy)

    def toy_energy(self, x, s):
        return 0.5 * (x - s[..., None]).square().sum(-1)

    def observables(self, **state):
        return {"x": state["x"], "radius": state["x"].square().sum(-1)}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EGM_CACHE_DIR", str(tmp_path / "references"))
    return tmp_path / "references"


@pytest.fixture(scope="module")
def toy() -> tuple[Toy, ReferencePlan, Reference]:
    target = Toy()
    plan = ReferencePlan(Alternate([Gibbs(target), HMC(target)]), chains=40, warmup=50, steps=50, thin=2, seed=3)
    return target, plan, make_reference(target, plan)


def test_reference_carries_how_it_was_made(toy):
    target, plan, reference = toy
    told = reference.diagnostics
    assert told["method"] == repr(plan.kernel)
    assert "HMC(leapfrog_steps=10, step_size=0.1, target_acceptance=0.8, jitter=0.2)" in told["method"]
    assert told["device"] == "cpu"
    assert [told[key] for key in ("seed", "chains", "warmup", "steps", "thin")] == [3, 40, 50, 50, 2]
    assert told["torch"] == torch.__version__
    assert told["score_calls"] == 40 * 150 * 11
    assert told["energy_calls"] == 40 * 150 * (11 + 2) + 40 * 50
    assert told["seconds"] > 0
    assert list(told["observables"]) == ["energy", "x[0]", "x[1]", "radius"]
    assert all(row["r_hat"] < 1.05 for row in told["observables"].values())
    assert reference.state["x"].shape == (2000, 2)
    assert list(reference.observables) == ["energy", "radius"]
    assert torch.equal(reference.observables["energy"], target.toy_energy(**reference.state).double())
    again = make_reference(target, plan)
    assert torch.equal(again.state["x"], reference.state["x"])
    json.dumps(told, allow_nan=False)


def test_reference_that_did_not_converge_is_refused():
    wells = Target(Space(x=Real(1, scale=3.0)), lambda x: 50 * (x.square() - 1).square().sum(-1))
    with pytest.raises(ConvergenceError, match=r"disagree on 'x\[0\]'.*R-hat .* more steps"):
        make_reference(wells, ReferencePlan(MALA(wells), chains=20, warmup=200, steps=50))


def test_draw_takes_different_draws_of_the_pool():
    pool = Reference({"x": torch.arange(100.0)[:, None]}, {})
    drawn = pool.draw(100, seed=1)["x"]
    assert not torch.equal(drawn, pool.state["x"])
    assert torch.equal(drawn.sort(0).values, pool.state["x"])
    assert torch.equal(pool.draw(10, seed=1)["x"], pool.draw(10, seed=1)["x"])
    assert not torch.equal(pool.draw(10, seed=1)["x"], pool.draw(10, seed=2)["x"])
    with pytest.raises(ValueError, match="the 100 draws of this reference pool, got 101; make a larger one"):
        pool.draw(101)


def test_summary_is_small_json_with_moments_and_quantiles(toy):
    _, _, reference = toy
    told = json.loads(json.dumps(summary(reference), allow_nan=False))
    assert told["n"] == 2000
    assert list(told["observables"]) == ["energy", "radius"]
    energy = told["observables"]["energy"]
    values = reference.observables["energy"].numpy()
    assert energy["mean"] == pytest.approx(values.mean())
    assert energy["sd"] == pytest.approx(values.std())
    assert len(energy["quantiles"]) == 501
    assert energy["quantiles"][0] == pytest.approx(values.min(), rel=1e-6)
    assert energy["quantiles"][250] == pytest.approx(np.median(values), rel=1e-6)
    assert energy["quantiles"][-1] == pytest.approx(values.max(), rel=1e-6)


def test_second_time_comes_from_disk_unchanged(toy, cache):
    reference = toy[2]
    made = []

    def make() -> Reference:
        made.append(1)
        return reference

    load_or_make("Toy(size=2, beta=0.4)", make)
    loaded = load_or_make("Toy(size=2, beta=0.4)", make)
    assert made == [1]
    assert loaded.diagnostics == reference.diagnostics
    for kept, original in ((loaded.state, reference.state), (loaded.observables, reference.observables)):
        assert kept.keys() == original.keys()
        assert all(torch.equal(kept[name], original[name]) for name in original)
        assert all(kept[name].dtype == original[name].dtype for name in original)
    assert [path.name for path in cache.iterdir()] == [cache_path("Toy(size=2, beta=0.4)").name]  # no temporary left
    load_or_make("Toy(size=3, beta=0.4)", make)
    assert made == [1, 1]


def test_names_make_readable_files_that_do_not_collide(cache):
    a, b = cache_path("Ising(size=10, beta=0.4)"), cache_path("Ising(size=10; beta=0.4)")
    assert a.name.startswith("Ising-size-10-beta-0.4-")
    assert a.parent == cache
    assert a != b
    assert len(cache_path("x" * 500).name) < 100


def test_cache_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("EGM_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "egm" / "references"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "egm" / "references"


@pytest.mark.parametrize("damage", ["truncated", "not a zip file", "empty", "without diagnostics", "without draws"])
def test_damaged_file_is_made_again_with_a_warning(toy, cache, damage):
    reference = toy[2]
    load_or_make("toy", lambda: reference)
    path = cache_path("toy")
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    elif damage == "without diagnostics":
        np.savez(path, **{"state/x": np.zeros(3)})  # pyright: ignore[reportArgumentType]
    elif damage == "without draws":
        np.savez(path, diagnostics=np.array("{}"))
    else:
        path.write_bytes(b"" if damage == "empty" else b"not a zip file")
    with pytest.warns(UserWarning, match="cannot be read .* and is made again"):
        again = load_or_make("toy", lambda: reference)
    assert again is reference
    assert torch.equal(load_or_make("toy", lambda: pytest.fail("not cached")).state["x"], reference.state["x"])


def test_damaged_bytes_inside_the_file_are_noticed(toy, cache):
    reference = toy[2]
    load_or_make("toy", lambda: reference)
    content = bytearray(cache_path("toy").read_bytes())
    content[len(content) // 2] ^= 255
    cache_path("toy").write_bytes(bytes(content))
    with pytest.warns(UserWarning, match="cannot be read"):
        load_or_make("toy", lambda: reference)


def test_nothing_is_pickled(toy, cache):
    load_or_make("toy", lambda: toy[2])
    with zipfile.ZipFile(cache_path("toy")) as file:
        assert all(name.endswith(".npy") for name in file.namelist())
    with np.load(cache_path("toy"), allow_pickle=False) as arrays:
        assert all(arrays[name].dtype.kind in "fiU" for name in arrays.files)


def test_directory_that_cannot_be_written_costs_a_warning_only(toy, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EGM_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="could not be cached .* set EGM_CACHE_DIR"):
        assert load_or_make("toy", lambda: toy[2]) is toy[2]


def test_a_file_of_another_reference_is_not_taken(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("EGM_CACHE_DIR", str(tmp_path))
    _, _, reference = toy
    load_or_make("one", lambda: reference)
    cache_path("one").replace(cache_path("two"))
    with pytest.warns(UserWarning, match="belongs to one"):
        again = load_or_make("two", lambda: reference)
    assert again is reference


def test_plans_that_differ_have_keys_that_differ(toy):
    target, _, _ = toy
    start = target.space.reference_sample(4)
    other = {name: x + 1 if x.is_floating_point() else x for name, x in start.items()}
    plans = [
        ReferencePlan(HMC(target), chains=4, warmup=1, steps=4),
        ReferencePlan(HMC(target, jitter=0.5), chains=4, warmup=1, steps=4),
        ReferencePlan(HMC(target), chains=4, warmup=1, steps=5),
        ReferencePlan(HMC(target), chains=4, warmup=1, steps=4, init=start),
        ReferencePlan(HMC(target), chains=4, warmup=1, steps=4, init=other),
    ]
    assert len({plan.key() for plan in plans}) == len(plans)


def test_a_reference_that_cannot_be_written_is_still_returned(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("EGM_CACHE_DIR", str(tmp_path))
    _, _, reference = toy
    odd = dataclasses.replace(reference, diagnostics={"mean": float("nan")})
    with pytest.warns(UserWarning, match="could not be cached"):
        assert load_or_make("odd", lambda: odd) is odd
