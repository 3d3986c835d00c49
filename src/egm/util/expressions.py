"""Constructor expressions: how targets, spaces, paths, processes and networks are written in files and commands.

`VE(sigma_max=2.0)`, `Ising(size=5, beta=0.4)` and `Masked(schedule=Cosine())` are Python calls of known names with
literal arguments; nothing else is evaluated and nothing is imported. A bare name is a call without arguments. Case,
hyphens and underscores are ignored.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def evaluate(text: str, names: Mapping[str, Callable[..., Any]], *, kind: str) -> Any:
    """Returns the object that an expression describes; `kind` names what was expected ("a path") in errors.

    >>> evaluate("Pair(a=1, b=-2.5)", {"Pair": lambda a, b: (a, b)}, kind="a pair")
    (1, -2.5)
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        tree = ast.Name(text.strip())
    except (RecursionError, MemoryError):
        raise ValueError(f"'{text.strip()[:40]}…' does not describe {kind}: it is nested too deeply") from None
    if isinstance(tree, ast.BinOp):  # a bare name with hyphens, such as residual-mlp
        tree = ast.Name(text.strip())
    return _evaluate(tree, names, kind, text)


def arguments(text: str, names: Mapping[str, Callable[..., Any]], *, kind: str) -> tuple[str, dict[str, Any]]:
    """Returns the name in an expression and its arguments by name, without calling anything.

    >>> arguments("complex(1, imag=2)", {"complex": lambda real, imag: None}, kind="a number")
    ('complex', {'real': 1, 'imag': 2})
    """

    def recorder(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # keeps the signature, against which arguments are checked
        def record(*positional: Any, **keywords: Any) -> tuple[str, dict[str, Any]]:
            return name, dict(inspect.signature(function).bind_partial(*positional, **keywords).arguments)

        return record

    return evaluate(text, {name: recorder(name, function) for name, function in names.items()}, kind=kind)


def _evaluate(tree: ast.expr, names: Mapping[str, Callable[..., Any]], kind: str, text: str) -> Any:
    if isinstance(tree, ast.Name):
        return names[nearest(tree.id, names, kind=kind)]()
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        function = names[nearest(tree.func.id, names, kind=kind)]
        positional = [_argument(a, names, kind, text) for a in tree.args]
        keywords = {k.arg: _argument(k.value, names, kind, text) for k in tree.keywords if k.arg is not None}
        if len(keywords) < len(tree.keywords):
            raise ValueError(f"{text!r} gives an argument twice or through **; write each one once, by its name")
        _check_arguments(function, positional, keywords, text)
        return function(*positional, **keywords)
    raise ValueError(f"{text!r} does not describe {kind}; write a name with its arguments, such as Name(option=1.0)")


def _argument(tree: ast.expr, names: Mapping[str, Callable[..., Any]], kind: str, text: str) -> Any:
    if isinstance(tree, ast.Call):
        return _evaluate(tree, names, kind, text)
    try:
        return ast.literal_eval(tree)
    except (ValueError, TypeError):  # TypeError: a list as the key of a dict
        raise ValueError(f"the arguments in {text!r} must be literals or calls of {sorted(names)}") from None


def _check_arguments(function: Callable[..., Any], positional: list[Any], keywords: dict[str, Any], text: str) -> None:
    signature = inspect.signature(function)
    if any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        return
    for name in keywords:
        nearest(name, signature.parameters, kind=f"an option of {text!r}")
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        raise ValueError(f"{text!r}: {error}") from None


def nearest(name: str, choices: Iterable[str], *, kind: str) -> str:
    """Returns the choice that equals `name` in normal form; raises with the closest choice and the full list."""
    choices = list(choices)
    plain = {normal_form(choice): choice for choice in choices}
    if normal_form(name) in plain:
        return plain[normal_form(name)]
    close = difflib.get_close_matches(normal_form(name), plain, n=1)
    hint = f"; did you mean '{plain[close[0]]}'?" if close else ""
    raise ValueError(f"'{name}' is not {kind}{hint} (known: {', '.join(sorted(choices))})")


def normal_form(name: str) -> str:
    """Returns the name in lower case, without hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def describe(thing: object) -> str:
    """Returns the expression of an object whose keyword-only arguments are kept as attributes of the same names.

    >>> from egm.paths import VE
    >>> from egm.spaces import Real
    >>> describe(VE(Real(2), sigma_max=3.0))
    'VE(sigma_min=0.01, sigma_max=3.0)'
    """
    parameters = inspect.signature(type(thing).__init__).parameters.values()
    options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return f"{type(thing).__name__}({', '.join(f'{name}={getattr(thing, name)!r}' for name in options)})"
