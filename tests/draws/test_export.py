"""Draws in files: every format returns the same numbers, writes are atomic, and ArviZ reads NetCDF."""

import csv
import json
import math
import os
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import egm
import egm.draws.export
from egm import Categorical, Draws, Real, Space
from egm.cli import main
from support.cli_cases import ISING, TINY_SP

SPACE = Space(
    file=Real((2, 3)), x=Real(2, scale=3.0), s=Categorical(3, shape=(2, 2)), k=Categorical(2, shape=()), r=Real(())
)
SUFFIXES = (".nc", ".npz", ".csv")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def some_draws(n=50, *, weighted=True, space=SPACE):
    generator = torch.Generator().manual_seed(0)
    state = space.reference_sample(n, generator=generator)
    log_weights, energies = (torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(2))
    log_weights[3], energies[3] = -math.inf, math.inf
    return Draws(space, state, log_weights=log_weights, energies=energies) if weighted else Draws(space, state)


def needs(suffix):
    if suffix == ".nc":
        pytest.importorskip("xarray", reason="NetCDF needs egm[bayes]")
        pytest.importorskip("h5netcdf", reason="NetCDF needs egm[bayes]")


def arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 0.23 announces its successor
        return pytest.importorskip("arviz", reason="ArviZ comes with egm[bayes]")


def read_back(file) -> dict[str, np.ndarray]:
    """Returns the variables, "log_weight" and "energy" of a file, [n, ...]."""
    if file.endswith(".npz"):
        names = {".log_weights": "log_weight", ".energies": "energy"}
        with np.load(file, allow_pickle=False) as written:
            return {names.get(name, name): written[name] for name in map(str, written)}
    if file.endswith(".nc"):
        xarray = pytest.importorskip("xarray")

        with xarray.open_datatree(file, engine="h5netcdf") as tree:
            found = {name: x.values[0] for group in tree.children.values() for name, x in group.data_vars.items()}
        if "lp" in found:
            np.testing.assert_array_equal(found.pop("lp"), -found["energy"])
        return found
    with open(file, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    found: dict[str, np.ndarray] = {}
    for column in rows[0]:
        name, *index = column.replace("]", "").split("[")
        shape = tuple(SPACE[name].shape) if name in SPACE else ()
        dtype = np.float64 if name not in SPACE else np.float32 if isinstance(SPACE[name], Real) else np.int64
        array = found.setdefault(name, np.zeros((len(rows), *shape), dtype))
        array[(slice(None), *map(int, index))] = [dtype(row[column]) for row in rows]
    return found


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("weighted", [True, False])
def test_every_format_gives_the_numbers_back(suffix, weighted):
    needs(suffix)
    draws = some_draws(weighted=weighted)
    draws.write(f"a/draws{suffix}")
    found = read_back(f"a/draws{suffix}")
    assert list(found) == [*SPACE, *(["log_weight", "energy"] if weighted else [])]
    for name, x in draws.state.items():
        np.testing.assert_array_equal(found[name], x.numpy(), strict=True)
    if weighted:
        assert draws.log_weights is not None
        assert draws.energies is not None
        np.testing.assert_array_equal(found["log_weight"], draws.log_weights.numpy(), strict=True)
        np.testing.assert_array_equal(found["energy"], draws.energies.numpy(), strict=True)
    assert os.listdir("a") == [f"draws{suffix}"]


def test_columns_are_named_by_their_entries():
    space = Space(v=Real(2), s=Categorical(2, shape=(1, 2)), r=Real(()))
    some_draws(5, space=space).write("draws.csv")
    with open("draws.csv", encoding="utf-8") as stream:
        assert stream.readline() == "v[0],v[1],s[0][0],s[0][1],r,log_weight,energy\n"
        assert len(stream.readlines()) == 5


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_fails_leaves_the_old_file_and_nothing_else(monkeypatch, suffix):
    needs(suffix)

    def fails(*_, **__):
        raise OSError("no space left")

    some_draws(7).write(f"draws{suffix}")
    with open(f"draws{suffix}", "rb") as stream:
        before = stream.read()
    if suffix == ".nc":
        xarray = pytest.importorskip("xarray")

        monkeypatch.setattr(xarray.DataTree, "to_netcdf", fails)
    else:
        monkeypatch.setattr(
            *((np.lib.format, "write_array") if suffix == ".npz" else (egm.draws.export, "_rows")), fails
        )
    with pytest.raises(OSError, match="no space left"):
        some_draws(9).write(f"draws{suffix}")
    with open(f"draws{suffix}", "rb") as stream:
        assert stream.read() == before
    assert os.listdir() == [f"draws{suffix}"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_memory_does_not_grow_with_the_draws(monkeypatch, suffix):
    needs(suffix)
    monkeypatch.setattr(egm.draws.export, "ROWS", 512)

    def peak(n):
        draws = some_draws(n, space=Space(x=Real(16)))
        tracemalloc.start()
        draws.write(f"draws{suffix}")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found, (16 * 4 + 2 * 8) * n

    peak(10)  # imports
    (few, _), (many, size) = peak(3 * 512), peak(12 * 512)
    assert many - few < size  # at most a copy of the draws for their labels; text would be several


@pytest.mark.parametrize("file", ["draws.pkl", "draws", "draws.NC"])
def test_other_suffixes_are_refused_by_name_before_anything_is_drawn(file, capsys):
    with pytest.raises(ValueError, match=r"\.nc \(ArviZ\), \.npz \(NumPy\) or \.csv"):
        some_draws().write(file)
    assert main(["sample", "no/such/run", "--out", file]) == 2  # the suffix is looked at first
    assert "written as .nc (ArviZ), .npz (NumPy) or .csv" in capsys.readouterr().err
    assert os.listdir() == []


@pytest.mark.parametrize("name", ["chain", "draw", "x_dim_0", "a/b"])
def test_names_that_xarray_has_no_room_for(name):
    needs(".nc")
    draws = some_draws(space=Space(**{"x": Real(2), name: Real(())}))
    with pytest.raises(ValueError, match=f"called '{name}'.*rename it in the Space, or write .npz"):
        draws.to_datatree()
    draws.write("draws.npz")
    np.testing.assert_array_equal(read_back("draws.npz")[name], draws[name].numpy())


@pytest.mark.parametrize("name", ["energy", "log_weight", "x[0]"])
def test_columns_of_equal_names_are_refused(name):
    with pytest.raises(ValueError, match=r"the same name.*write \.npz"):
        some_draws(space=Space(**{"x": Real(2), name: Real(())})).write("draws.csv")
    assert os.listdir() == []


@pytest.mark.parametrize("package", ["xarray", "h5netcdf"])
def test_missing_packages_are_named_with_the_command(monkeypatch, capsys, package):
    if package == "h5netcdf":
        pytest.importorskip("xarray", reason="needs egm[bayes]")
    monkeypatch.setitem(sys.modules, package, None)  # an import of it fails
    with pytest.raises(ImportError, match=rf"writing NetCDF needs {package}: pip install 'egm\[bayes\]'"):
        some_draws().write("draws.nc")
    assert main(["sample", "no/such/run", "--out", "draws.nc"]) == 2
    assert capsys.readouterr().err == f"egm: writing NetCDF needs {package}: pip install 'egm[bayes]'\n"
    if package == "xarray":
        with pytest.raises(ImportError, match=r"to_datatree needs xarray: pip install 'egm\[bayes\]'"):
            some_draws().to_datatree()


def test_energies_must_be_one_for_each_draw():
    with pytest.raises(ValueError, match=r"energies need the shape \(3,\), got \(2,\)"):
        Draws(Space(x=Real(1)), {"x": torch.zeros(3, 1)}, energies=torch.zeros(2))


# ---------------------------------------------------------------------- from a run


def test_energies_are_those_of_the_states():
    """In the coordinates that the energy sees, without the Jacobians of scales and constraints."""
    space = Space(x=Real(2, loc=1.0, scale=3.0), p=Real((), constraint="positive"), h=Categorical(2, shape=2))
    target = egm.Target(space, lambda x, p, h: 0.1 * x.square().sum(-1) + p + h.sum(-1))
    small = {"network": "MLP(width=8)", "batch_size": 8, "refresh": 16, "sample_steps": 4, "device": "cpu"}
    sampler = egm.fit(target, steps=1, progress=False, **small)
    draws = sampler.sample(30, seed=1, batch_size=20)
    assert draws.energies is not None
    torch.testing.assert_close(draws.energies, target.energy(**draws.state).double(), rtol=1e-5, atol=1e-5)
    assert draws.energy_calls == 30  # none was asked for twice
    assert sampler.sample(30, seed=1, weigh=False).energies is None


def test_energies_of_moved_states_are_not_those_before():
    target = egm.targets.Ising(size=2, beta=0.3)
    small = {"network": "MLP(width=8)", "batch_size": 8, "refresh": 16, "device": "cpu"}
    sampler = egm.fit(target, steps=1, progress=False, **small)
    kept, moved = (sampler.sample(32, seed=1, smc=egm.SMC(groups=4, moves=moves)) for moves in (0, 2))
    assert kept.energies is not None
    torch.testing.assert_close(kept.energies, target.energy(**kept.state).double())
    assert moved.energies is None


def test_the_command_writes_all_three_with_the_same_numbers(capsys):
    assert main(["train", *ISING, *TINY_SP, "--steps", "2", "--evaluate", "false", "--out", "a"]) == 0
    draws, target = egm.load("a").sample(20, seed=4), egm.targets.Ising(size=3, beta=0.4)
    assert draws.log_weights is not None
    for suffix, reader in ((".npz", "numpy.load"), (".csv", "pandas.read_csv"), (".nc", "arviz.from_netcdf")):
        if suffix == ".nc":
            needs(suffix)  # the others are done
        capsys.readouterr()
        assert main(["sample", "a", "-n", "20", "--seed", "4", "--out", f"draws{suffix}"]) == 0
        assert f"read with {reader}('draws{suffix}')" in capsys.readouterr().out
        if suffix == ".csv":
            with open("draws.csv", newline="", encoding="utf-8") as stream:
                rows = list(csv.DictReader(stream))
            s = np.array([[[int(row[f"s[{i}][{j}]"]) for j in range(3)] for i in range(3)] for row in rows])
            found = {"s": s} | {k: np.array([float(row[k]) for row in rows]) for k in ("log_weight", "energy")}
        else:
            found = read_back(f"draws{suffix}")
        np.testing.assert_array_equal(found["s"], draws["s"].numpy())
        np.testing.assert_array_equal(found["log_weight"], draws.log_weights.numpy())
        np.testing.assert_allclose(found["energy"], target.energy(**draws.state).numpy(), rtol=1e-6)


def test_the_command_resamples(capsys):
    assert main(["train", *ISING, *TINY_SP, "--steps", "2", "--evaluate", "false", "--out", "a"]) == 0
    assert main(["sample", "a", "-n", "200", "--seed", "4", "--resample", "50", "--out", "draws.npz"]) == 0
    assert "n 200, ESS" in capsys.readouterr().out  # what is said is of the weighted draws
    found, target = read_back("draws.npz"), egm.targets.Ising(size=3, beta=0.4)
    assert list(found) == ["s", "energy"]
    drawn = {x.tobytes() for x in egm.load("a").sample(200, seed=4)["s"].numpy()}
    assert {x.tobytes() for x in found["s"]} <= drawn
    np.testing.assert_allclose(found["energy"], target.energy(s=torch.as_tensor(found["s"])).numpy())


# ---------------------------------------------------------------------- ArviZ


def as_arviz(az, tree):
    return az.from_datatree(tree) if hasattr(az, "from_datatree") else tree  # 1.x takes trees as they are


def test_arviz_reads_the_tree_and_the_file():
    az = arviz()
    needs(".nc")
    n, generator = 4000, torch.Generator().manual_seed(1)
    space = Space(v=Real(2), h=Categorical(3, shape=2))
    draws = Draws(space, space.reference_sample(n, generator=generator))
    draws.write("draws.nc")
    for data in (as_arviz(az, draws.to_datatree()), az.from_netcdf("draws.nc")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a single chain has no R-hat
            table = az.summary(data, round_to="none")
        assert list(table.index) == ["v[0]", "v[1]", "h[0]", "h[1]"]
        mean = torch.cat([draws["v"].double().mean(0), draws["h"].double().mean(0)]).numpy()
        np.testing.assert_allclose(np.asarray(table["mean"], float), mean, rtol=1e-5, atol=1e-5)
        # Independent draws: the effective number is n, within 5 √(8 n) of its own noise and more.
        assert np.all(np.abs(np.asarray(table["ess_bulk"], float) / n - 1) < 0.2)


def tilted():
    """Draws of N(0, 1) with weights exp(x_0), under which x_0 is N(1, 1), and energies."""
    x = torch.randn(5000, 2, generator=torch.Generator().manual_seed(2))
    return Draws(Space(x=Real(2)), {"x": x}, log_weights=x[:, 0], energies=0.5 * x.square().sum(1))


@pytest.mark.parametrize("python", [sys.executable, os.environ.get("EGM_ARVIZ_PYTHON")], ids=["this", "other"])
def test_arviz_finds_draws_weights_and_energies_in_a_file(python):
    """By this Python, and by another whose ArviZ is 1.x (`make test-arviz`)."""
    needs(".nc")
    if python is None:
        pytest.skip("there is no other Python with ArviZ; make test-arviz makes one")
    if python == sys.executable:
        arviz()
    draws = tilted()
    draws.write("draws.nc")
    reader = str(Path(__file__).parents[1] / "support" / "arviz_reader.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, reader, "draws.nc"], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    found = json.loads(done.stdout)
    assert python == sys.executable or found["version"].startswith("1.")
    assert found["names"] == ["x[0]", "x[1]"]
    np.testing.assert_allclose(found["mean"], draws["x"].double().mean(0), atol=1e-5)
    assert all(abs(ess / len(draws) - 1) < 0.2 for ess in found["ess"])
    np.testing.assert_allclose(found["weighted"], draws.expect(lambda x: x)[0], rtol=1e-6)
    assert draws.energies is not None
    energy = float(draws.expect(lambda x: 0.5 * x.square().sum(1))[0])
    assert found["energy"] == pytest.approx(energy, rel=1e-5)
    assert found["lp"] == pytest.approx(-energy, rel=1e-5)
    assert abs(found["weighted"][0] - 1) < 0.2 < abs(found["mean"][0] - 1)  # weights matter


def test_resampled_draws_need_no_weights():
    az = arviz()
    needs(".nc")
    draws = tilted()
    equal = Draws(draws.space, draws.resample(5000, seed=3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = az.summary(as_arviz(az, equal.to_datatree()), round_to="none")
    np.testing.assert_allclose(np.asarray(table["mean"], float), equal["x"].double().mean(0), rtol=1e-5, atol=1e-6)
    assert abs(float(table["mean"].iloc[0]) - 1) < 0.2
