"""The options of `egm train`: arguments of `egm.fit`, options of the loop and methods, and arguments of a target."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, Literal, get_type_hints

from egm.api import fit
from egm.cli.parsing import Count, Parser, Seconds, Seed, documented
from egm.config.registry import TARGETS
from egm.methods.registry import METHODS, OPTION_GROUPS, declared, option_names
from egm.targets.base import Target
from egm.util.expressions import arguments

DESCRIPTION = """\
Train a sampler, run Markov chains, or continue a run.

  egm train ising --target.size 5 --target.beta 0.4 --steps 2000 --out runs/a
  egm train --target my_module:make_target --time_limit 600   a function that returns an egm.Target
  egm train --recipe fast/gbrbm --method egm-bs               named settings; options override them
  egm train gbrbm --method gibbs                              chains, instead of training a sampler
  egm train --resume runs/a [--steps M | --time_limit S]      continue a run; M and S are totals

`egm train ising --help` adds the arguments of that target, `egm list` shows all choices, and
`egm watch runs/a` shows the progress of a run. Ctrl-C saves the run and prints how to continue it.
"""
RECORD, PARTS = "numbers and records", "parts, as expressions such as VE(sigma_max=2.0)"


def make_parser(defaults: Mapping[str, Any], target: type[Target] | None, target_defaults: Mapping[str, Any]) -> Parser:
    """Return the parser; `defaults` (of a recipe or run) override the library's, and a `target` adds its arguments."""
    parser = Parser("train", DESCRIPTION, usage="TARGET [options]", folds=True)
    told = documented(fit)
    run = parser.add_argument_group("run")
    run.add_argument("--method", metavar="NAME", type=str, default="egm-sp", help=f"{', '.join(METHODS)}")
    run.add_argument("--recipe", metavar="NAME", type=str | None, help="from `egm list recipes`, or a YAML file")
    run.add_argument("--resume", metavar="RUN", type=str | None, help="folder of a run to continue")
    run.add_argument("--start", metavar="RUN", type=str | None, help="folder of a run whose network is the initial one")
    run.add_argument("--steps", type=Count | None, help="gradient steps, or steps of each chain (6000 by default)")
    run.add_argument("--time_limit", type=Seconds | None, help=told["time_limit"])
    run.add_argument("--seed", type=Seed, default=0, help=told["seed"])
    run.add_argument("--device", metavar="NAME", type=str | None, help=told["device"])
    run.add_argument("--out", metavar="RUN", type=str | None, help="run folder, by default runs/TARGET-METHOD-SEED")
    run.add_argument("--progress", type=bool, default=True, help=told["progress"])
    run.add_argument("--tensorboard", action="store_true", help="also write event files for TensorBoard")
    record = parser.add_argument_group(RECORD)
    record.add_argument("--dtype", type=Literal["float32", "float64"], default="float32", help="of the real variables")
    record.add_argument("--evaluate", type=bool, default=True, help="compare with reference draws after training")
    record.add_argument(
        "--role", type=Literal["main", "ablation", "smoke", "cost"], default="main", help="kind of run, in results.json"
    )
    record.add_argument("--concurrent", type=Count, default=1, help="runs that share the device, in results.json")

    parts = parser.add_argument_group(PARTS)
    parts.add_argument("--network", type=str | None, help="the denoiser, such as MLP(width=256)")
    parts.add_argument("--energy_network", type=str | None, help="network of the intermediate energy (egm-bs)")
    parts.add_argument("--paths", type=dict[str, str], default={}, help="--paths.x EXPRESSION: path of the variable x")
    parts.add_argument("--processes", type=dict[str, str], default={}, help=f"--processes.x NAME: {told['processes']}")

    for title, group in OPTION_GROUPS.items():
        section, hints, texts = parser.add_argument_group(title), get_type_hints(group), documented(group)
        for field in (field for field in dataclasses.fields(group) if field.name in declared(group)):
            section.add_argument(
                f"--{field.name}", type=hints[field.name], default=field.default, help=texts[field.name]
            )
    parser.fold(RECORD, PARTS, *OPTION_GROUPS)
    known = {"method", "steps", "time_limit", "seed", "dtype", "network", "energy_network", "paths", "processes"}
    known |= {*option_names()}
    parser.set_defaults({name: value for name, value in defaults.items() if name in known})
    if target is not None:
        _add_target(parser, target, target_defaults)
    return parser


def _add_target(parser: Parser, target: type[Target], defaults: Mapping[str, Any]) -> None:
    parameters = inspect.signature(target).parameters.values()
    data = [p.name for p in parameters if p.default is p.empty and p.annotation in ("object", object)]
    if data:
        raise ValueError(
            f"{target.__name__} is made from data ({', '.join(data)}): write a function that returns it, and train it"
            " with --target module:function"
        )
    section = parser.add_argument_group(f"arguments of {target.__name__}")
    section.add_class_arguments(target, "target", as_group=False, fail_untyped=False)
    told = documented(target)
    for name in inspect.signature(target).parameters:
        if action := parser._option_string_actions.get(f"--target.{name}"):
            action.help = told.get(name, "see the documentation of the target")
    parser.set_defaults({f"target.{name}": value for name, value in defaults.items()})


def split_target(text: str) -> tuple[type[Target], dict[str, Any]]:
    """Return the class and arguments of a built-in target, from its name or expression."""
    name, given = arguments(text, TARGETS, kind="a target")
    return TARGETS[name], given
