"""`egm train`: starts or continues a run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from egm import recipes
from egm.api import begin, resume
from egm.cli.finish import finish
from egm.cli.own_target import import_target
from egm.cli.parsing import Parser, peek, value_of, without
from egm.cli.resuming import is_complete, refuse_differences
from egm.cli.train_parser import make_parser, split_target
from egm.config.options import removed_from_command
from egm.config.request import make_request
from egm.config.targets import own_name
from egm.methods.registry import METHODS, find_method, option_names
from egm.runs.directory import RunDirectory
from egm.sampler import AnySampler
from egm.targets.base import EnergyError, Target
from egm.train.signals import Stopped
from egm.train.trainer import Diverged
from egm.util.expressions import nearest

LIMITS = ("steps", "time_limit")
EVALUATE_EVERY = 1000  # only with exact draws, which are cheap; an MCMC reference may take long
PARTS = ("network", "energy_network")


def train(argv: list[str]) -> int:
    """Run `egm train` with these arguments."""
    argv, said = removed_from_command(argv)
    for text in said:
        print(f"egm: {text}", file=sys.stderr)
    return _start(argv) if peek(argv, "--resume") is None else _continue(argv)


def train_parser() -> Parser:
    """Return the parser of `egm train` without the arguments of a target."""
    return make_parser({}, None, {})


# ---------------------------------------------------------------------- a new run


def _start(argv: list[str]) -> int:
    chosen, rest = _chosen_target(argv)
    own = _imported(chosen)  # first: the module may register a method
    method = nearest(peek(rest, "--method") or "egm-sp", METHODS, kind="a method")
    name = peek(rest, "--recipe")
    name = None if name is None else recipes.find(name)
    recipe = {} if name is None else recipes.load(name, method)
    text = chosen or recipe.get("target")
    if text is None and not {"-h", "--help", "--help_all"} & set(rest):
        raise ValueError("no target; give a name (`egm list targets`), --target module:function, --recipe or --resume")
    own = own or _imported(text)
    built_in, arguments = (None, {}) if text is None or own is not None else split_target(text)
    parser = make_parser({"method": method, **METHODS[method].defaults, **recipe}, built_in, arguments)
    values, given = parser.read(rest)
    target = own or _built(built_in, values)

    label = text.split(":")[-1] if text is not None and own is not None else type(target).__name__.lower()
    folder = Path(values.out) if values.out else _unique(Path("runs") / f"{label}-{method}-{values.seed}")
    overrides = _overrides(parser, values, given, recipe=name is not None)
    if name is not None and chosen is not None:
        overrides["target"] = repr(target)
    same_target = not any(key.startswith("target") for key in overrides)
    notes = {
        "recipe": name,
        "stated": {key: value for key, value in recipe.items() if key != "method"},
        "paper": _published(name, method) if name is not None and same_target else {},
        "overrides": overrides,
        "start": values.start,
        "role": values.role,
        "concurrent": values.concurrent,
        "command": f"egm train {shlex.join(argv)}",
    }
    asked = [key for key in (*option_names(), *PARTS) if key in given or key in recipe]
    options = {key: values[key] for key in asked if key not in PARTS}
    if METHODS[method].trains:
        options.setdefault("evaluate_every", EVALUATE_EVERY if target.reference_kind == "exact" else 0)
    limits = {key: values[key] for key in LIMITS if key in given} or {k: recipe[k] for k in LIMITS if k in recipe}
    print(f"training {target!r} by {method} into {folder}", file=sys.stderr)
    return _run(
        lambda: begin(
            make_request(
                target, method, seed=values.seed, device=values.device, dtype=values.dtype, out=folder,
                start=values.start, progress=values.progress, tensorboard=values.tensorboard,
                source=text if own is not None else None, notes=notes, options=options,
                paths={**recipe.get("paths", {}), **values.paths},
                processes={**recipe.get("processes", {}), **values.processes},
                **{key: values[key] for key in PARTS if key in asked}, **limits,
            )
        ),
        folder,
        evaluate=values.evaluate,
    )  # fmt: skip


def _imported(text: str | None) -> Target | None:
    """Return the target of `module:function`; None if the text does not have this form."""
    return import_target(text) if text is not None and ":" in text else None


def _chosen_target(argv: list[str]) -> tuple[str | None, list[str]]:
    """Return the target of a command line (its first argument, or --target) and the other arguments."""
    first = argv[0] if argv and not argv[0].startswith("-") else None
    rest = argv[1:] if first is not None else argv
    option = peek(rest, "--target")
    if first is not None and option is not None:
        raise ValueError(f"two targets are given, '{first}' and '{option}'; leave one out")
    return first or option, without(rest, "--target")


def _built(built_in: type[Target] | None, values: Namespace) -> Target:
    if built_in is None:
        raise ValueError("no target")
    arguments = values.get("target")
    make: Callable[..., Target] = built_in
    return make(**({} if arguments is None else arguments.as_dict()))


def _unique(folder: Path) -> Path:
    """Return the folder, with a number added if it exists."""
    tried, number = folder, 2
    while tried.exists():
        tried, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return tried


def _overrides(parser: Parser, values: Namespace, given: set[str], *, recipe: bool) -> dict[str, Any]:
    """Return the options on the command line that differ from the recipe (or the defaults)."""
    defaults = parser.get_defaults()
    prefixes = ("paths.", "processes.", *(["target."] if recipe else []))
    counted = {name for name in given if name in (*LIMITS, *PARTS, *option_names()) or name.startswith(prefixes)}
    changed = {name: value_of(values, name) for name in sorted(counted)}
    return {name: value for name, value in changed.items() if value != value_of(defaults, name)}


def _published(name: str, method: str) -> dict[str, list[float | None]]:
    return {metric: list(numbers) for metric, numbers in recipes.published(name, method).items()}


# ---------------------------------------------------------------------- a run to continue


def _continue(argv: list[str]) -> int:
    chosen, rest = _chosen_target(argv)
    folder = Path(str(peek(rest, "--resume")))
    run = RunDirectory(folder)
    config = run.read_config()
    kind = METHODS.get(config["method"])  # unknown as long as the target's module has not registered it
    if kind is not None and (reason := kind.why_not_resumed(run, config)) is not None:
        raise ValueError(reason)
    text: str = config["target"]
    if (name := own_name(text)) is not None:
        raise ValueError(
            f"{folder} was started in Python, for {name}; continue it there: egm.resume({str(folder)!r}, target=...)"
        )
    target = _imported(text)  # first: the module may register the run's method
    built_in, arguments = (None, {}) if target is not None else split_target(text)
    values, given = make_parser(config, built_in, arguments).read(rest)
    refuse_differences(folder, config, chosen, values, given)
    limits = {key: values[key] for key in LIMITS if key in given}
    if is_complete(config if not limits else config | dict.fromkeys(LIMITS) | limits, run.read_state("cpu")):
        print(f"{folder} is complete; add --steps or --time_limit (in total) to train it further")
        return 0
    device = values.device if "device" in given else None
    print(f"continuing {folder}: {text} by {config['method']}", file=sys.stderr)
    return _run(
        lambda: resume(
            folder, target=target, device=device, progress=values.progress, tensorboard=values.tensorboard, **limits
        ),
        folder,
        evaluate=values.evaluate,
    )


# ---------------------------------------------------------------------- both


def _run(train_it: Callable[[], AnySampler], folder: Path, *, evaluate: bool) -> int:
    """Train and evaluate, or print how to continue a stopped run."""
    try:
        sampler = train_it()
    except Stopped as stopped:
        if (folder / "config.yaml").is_file():
            print(f"\nstopped by {stopped} {_what_is_left(folder, saved=stopped.saved)}", file=sys.stderr)
        return 128 + stopped.signal
    except (EnergyError, Diverged):
        if (folder / "checkpoint.pt").is_file():
            print(f"the last good checkpoint is kept in {folder}", file=sys.stderr)
        raise
    finish(folder, sampler, evaluate=evaluate)
    return 0


def _what_is_left(folder: Path, *, saved: bool) -> str:
    """Return what a stopped run has saved, and the command that uses it."""
    name = shlex.quote(str(folder))
    run = RunDirectory(folder)
    config = run.read_config()
    if find_method(config["method"]).why_not_resumed(run, config) is not None:
        left = f"and kept the states so far; draw from them with: egm sample {name}"
        return left if saved else "before a state was kept"
    what = "and saved" if saved else "in a step; the last checkpoint is kept"
    return f"{what}; continue with: egm train --resume {name}"
