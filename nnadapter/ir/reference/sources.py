"""The source of a definition: the function, and what it calls in the definition's own files."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import numpy as np

_OWN = "nnadapter.ir.definition"


def source_of(function: Callable[..., Any]) -> str:
    """Return the Python text of a function and of everything that it calls in its own package.

    1. What is no function of Python, or has no source, is named.
    2. A lambda is the line in which it stands.
    3. A function made by another is shown with that one, and with what it was made of.
    4. What a text names that stands in a definition's file, or in the function's own, comes before it.
    """
    if not isinstance(function, FunctionType):
        return _named(function)
    parts: dict[str, str] = {}
    try:
        _collect(function, parts)
    except (KeyError, OSError, TypeError):  # no such module, or one without a source
        return _named(function)
    return "\n\n\n".join(parts.values())


def _named(function: Callable[..., Any]) -> str:
    home = "numpy" if isinstance(function, np.ufunc) else getattr(function, "__module__", None)
    name = getattr(function, "__name__", "")
    return f"{home}.{name}" if home and name else name or f"# {type(function).__name__}"


def _collect(function: FunctionType, parts: dict[str, str]) -> None:
    module, name = function.__module__, function.__qualname__.partition(".")[0]
    for reference in _references(function.__code__):
        _collect_name(module, reference, parts)
    held = inspect.getclosurevars(function).nonlocals
    for value in held.values():
        if isinstance(value, FunctionType) and value.__name__ != "<lambda>":
            _collect(value, parts)
    if name == "<lambda>":
        parts[f"{module}.{id(function)}"] = _line(function)
    elif name in _texts(module):
        _collect_name(module, name, parts)
    if held and "." in function.__qualname__:
        parts[f"{module}.{id(function)}"] = _made_of(name, held)


def _made_of(name: str, held: Mapping[str, Any]) -> str:
    """The line in which a function was made, if lambdas in it say of what, or else what it holds."""
    for value in held.values():
        if isinstance(value, FunctionType) and value.__name__ == "<lambda>":
            return _line(value)
    return f"# made by {name} with {'; '.join(f'{key} = {_shown(value)}' for key, value in held.items())}"


def _line(function: FunctionType) -> str:
    """The line of a table in which a lambda stands, as an assignment."""
    line = inspect.getsource(function).strip().rstrip(",")
    return re.sub(r'^"(\w+)": ', r"\1 = ", line)


def _shown(value: object) -> str:
    if isinstance(value, FunctionType):
        return value.__name__
    return f"numpy.{value.__name__}" if callable(value) and hasattr(value, "__name__") else repr(value)


def _collect_name(module: str, name: str, parts: dict[str, str]) -> None:
    """Add the text of a module's own name, after what it names itself."""
    value = getattr(sys.modules[module], name, None)
    home = getattr(value, "__module__", module) if isinstance(value, FunctionType) else module
    key = f"{home}.{name}"
    if key in parts or (home != module and not home.startswith(_OWN)) or name not in _texts(home):
        return
    parts[key] = ""  # its place is taken, so that a function which calls itself comes to an end
    text = _texts(home)[name]
    for reference in sorted({node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}):
        _collect_name(home, reference, parts)
    del parts[key]
    parts[key] = text


def _references(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _references(constant)


@cache
def _texts(module: str) -> Mapping[str, str]:
    """The functions and assignments of a module, by name; tables by operation are left out."""
    text = inspect.getsource(sys.modules[module])
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        for name in _names(node):
            found[name] = _without_remarks(ast.get_source_segment(text, node) or "")
    return found


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (target.id for target in targets if isinstance(target, ast.Name) and not target.id[0].isalpha())


def _without_remarks(text: str) -> str:
    """The text without what is said to type checkers and linters."""
    return "\n".join(line.partition("  # type:")[0].partition("  # noqa")[0].rstrip() for line in text.splitlines())
