"""The checks of `make test-install`, in an environment that holds the package and none of its extras.

Training, drawing, saving and loading work, in Python and on the command line; what needs an extra is refused with
the command that installs it. There is no pytest here.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path

import torch

import egm
from egm.adapters import from_jax, from_numpyro, from_pyro
from egm.baselines import numpyro_chains
from egm.metrics import w2
from egm.report import write_report
from egm.util.extras import MissingPackage

#: extra -> modules that must not be here
EXTRAS = {
    "report": ["matplotlib"],
    "bayes": ["xarray", "h5netcdf", "arviz"],
    "log": ["tensorboard"],
    "completion": ["shtab"],
    "ot": ["ot"],
    "numpyro": ["numpyro"],
    "jax": ["jax"],
    "pyro": ["pyro"],
}
WITHOUT_CODE = {"dev", "docs", "examples", "browser"}  # for developers
TINY = {"steps": 4, "network": "MLP(width=8)", "batch_size": 16, "refresh": 32, "device": "cpu", "progress": False}
SPACE = egm.Space(v=egm.Real(2), h=egm.Categorical(2, shape=3))


def energy(v: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Reals whose mean depends on symbols."""
    return 0.5 * (v - h[..., :2]).square().sum(-1) + 0.3 * h[..., 2]


def command(*arguments: str, code: int = 0) -> str:
    """Returns the output of the installed `egm`, which must end with that exit code."""
    done = subprocess.run([f"{sys.prefix}/bin/egm", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise SystemExit(f"egm {' '.join(arguments)} ended with {done.returncode}, not {code}:\n{done.stderr}")
    return done.stdout + done.stderr


def check_environment() -> None:
    """Checks that the package is the installed one, and that every extra is missing."""
    if not Path(egm.__file__).is_relative_to(sys.prefix):
        raise SystemExit(f"egm is imported from {egm.__file__}, which is not in {sys.prefix}")
    present = [name for names in EXTRAS.values() for name in names if util.find_spec(name) is not None]
    if present:
        raise SystemExit(f"{', '.join(present)} should not be here; make the environment again")
    extras = set(metadata.metadata("egm").get_all("Provides-Extra") or [])
    if extras - WITHOUT_CODE != set(EXTRAS):
        raise SystemExit(f"this program and pyproject.toml name different extras: {extras ^ set(EXTRAS)}")


def check_library(run: Path) -> None:
    """Train, draw, save, load: the same draws again."""
    target = egm.Target(SPACE, energy)
    sampler = egm.fit(target, out=run, **TINY)
    sampler.save(run / "copy")
    draws = sampler.sample(50, seed=1)
    for folder in (run, run / "copy"):
        again = egm.load(folder, target).sample(50, seed=1)
        if not all(torch.equal(draws[name], again[name]) for name in draws):
            raise SystemExit(f"draws of the sampler in {folder} are not those of the one that was saved")
    draws.write(run / "draws.npz")
    print(draws.summary())


def check_command_line(run: Path) -> None:
    """Train, draw, evaluate, list."""
    options = [f"--{name}={value}" for name, value in TINY.items() if name != "progress"]
    command("train", "ising", "--target.size", "3", "--target.beta", "0.3", "--out", str(run), *options)
    command("train", "--resume", str(run), "--steps", "6")
    command("sample", str(run), "-n", "20", "--out", str(run / "draws.csv"))
    command("evaluate", str(run), "--n", "20", "--repeats", "2", "--floor_pairs", "2")
    command("check", "--help")
    command("list")


def check_extras(run: Path) -> None:
    """Everything that needs an extra names the command that installs it."""
    target = egm.Target(SPACE, energy)
    draws = egm.load(run).sample(10, seed=0)
    asked: dict[str, list[Callable[[], object]]] = {
        "report": [lambda: write_report([run])],
        "bayes": [draws.to_datatree, lambda: draws.write(run / "draws.nc")],
        "log": [lambda: egm.fit(target, out=run / "logged", tensorboard=True, **TINY)],
        "ot": [lambda: w2(torch.zeros(3, 2), torch.zeros(4, 2))],
        "numpyro": [lambda: from_numpyro(energy), lambda: numpyro_chains.run(target)],
        "jax": [lambda: from_jax(SPACE, energy)],
        "pyro": [lambda: from_pyro(energy)],
    }
    lines = {
        "report": [("report", str(run))],
        "bayes": [("sample", str(run), "--out", str(run / "draws.nc"))],
        "log": [("train", "gbrbm", "--tensorboard", "--steps", "2", "--out", str(run / "logged"))],
        "completion": [("completion", "bash")],
    }
    for extra in EXTRAS:
        wanted = f"pip install 'egm[{extra}]'"
        said = [command(*words, code=2) for words in lines.get(extra, [])]
        for ask in asked.get(extra, []):
            try:
                ask()
            except MissingPackage as missing:
                said.append(str(missing))
            else:
                raise SystemExit(f"nothing was said of the extra '{extra}'")
        if not said or not all(wanted in text for text in said):
            raise SystemExit(f"without the extra '{extra}' there should be {wanted!r}, got {said}")
        print(f"{extra:<12}{said[0].strip()}")


def check_an_extra() -> None:
    """Checks that the command in a message installs the missing package (for the smallest extra)."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "egm[completion]"], check=True)
    command("completion", "bash")


if __name__ == "__main__":
    check_environment()
    with tempfile.TemporaryDirectory() as folder:
        check_library(Path(folder) / "mixed")
        check_command_line(Path(folder) / "ising")
        check_extras(Path(folder) / "ising")
    check_an_extra()
    print("the package works without extras, and names each that is missing")
