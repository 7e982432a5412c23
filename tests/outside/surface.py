"""The public surface as text: Python names, command line, JSON keys of reports, protobuf fields, C names.

    python -m tests.outside.surface          writes surface.txt

A change of the surface is then a change of that file, which a review can read line by line.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import nnadapter as nna
from nnadapter.cli import main
from tests.models import CHAIN, parse

PATH = Path(__file__).with_name("surface.txt")
_ROOT = Path(__file__).parents[2]
_MODULES = {
    "nnadapter": None,
    "nnadapter.backend": None,
    "nnadapter.drivers": None,
    "nnadapter.errors": None,
    "nnadapter.ir": None,
    "nnadapter.paddle": "paddle",
    "nnadapter.ray": "ray",
    "nnadapter.rules": None,
    "nnadapter.testing": None,
    "nnadapter.torch": "torch",
    "partition": None,
}
"""Public modules, and the package that each needs."""


def surface() -> dict[str, str]:
    """Return the text of each section, by title; without sections whose package is not installed."""
    sections = {}
    for name, package in _MODULES.items():
        if package is None or importlib.util.find_spec(package):
            sections[name] = "\n".join(_module_lines(name))
    sections["command line"] = "\n".join(_command_lines(main, "nnadapter"))
    sections["JSON of a report"] = "\n".join(sorted(_report_keys()))
    sections["protobuf"] = "\n".join(_proto_lines())
    sections["C"] = "\n".join(_c_lines())
    return sections


def text_of(sections: dict[str, str]) -> str:
    return "\n\n".join(f"# {title}\n\n{text}" for title, text in sections.items()) + "\n"


def _module_lines(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    own = (key for key, value in vars(module).items() if getattr(value, "__module__", None) == name)
    for key in sorted(getattr(module, "__all__", None) or (each for each in own if not each.startswith("_"))):
        value = getattr(module, key)
        if inspect.isclass(value):
            yield from _class_lines(key, value)
        elif callable(value):
            yield f"{key}{_signature(value)}"
        else:
            yield f"{key}: {type(value).__name__}"


def _class_lines(name: str, kind: type) -> Iterator[str]:
    ours = [each for each in kind.__mro__ if each.__module__.partition(".")[0] in ("nnadapter", "partition")]
    bases = ", ".join(each.__name__ for each in ours[1:])
    if issubclass(kind, BaseException):
        yield f"class {name}({bases})"
        return
    yield f"class {name}({bases}){_signature(kind)}"
    for key in sorted({key for each in ours for key in vars(each) if not key.startswith("_")}):
        value = inspect.getattr_static(kind, key)
        called = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        yield f"    {key}{_signature(called) if inspect.isfunction(called) else ''}"


def _signature(value: Any) -> str:
    """Return the names of parameters, `=` after those with a default."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return "(...)"
    names = [str(each.replace(annotation=each.empty)).partition("=") for each in parameters]
    marks = ["*"] if any(each.kind is each.KEYWORD_ONLY for each in parameters) else []
    starred = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    first = next((at for at, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), 0)
    texts = [name + ("=" if equals else "") for name, equals, _ in names]
    return f"({', '.join(texts if starred or not marks else [*texts[:first], *marks, *texts[first:]])})"


def _command_lines(command: click.Command, name: str) -> Iterator[str]:
    for parameter in command.params:
        values = getattr(parameter.type, "choices", None)
        choices = f" [{'|'.join(map(str, values))}]" if values else ""
        if isinstance(parameter, click.Argument):
            yield f"{name} {parameter.human_readable_name}"
        else:
            yield f"{name} {'/'.join((*parameter.opts, *parameter.secondary_opts))}{choices}"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            if inner is not None:
                yield from _command_lines(inner, f"{name} {each}")


def _report_keys() -> set[str]:
    """Return the paths of keys in reports with and without costs, and after a run."""
    keys: set[str] = set()
    model = parse(CHAIN)
    switched = {"switched_off": "Neg"}
    for policy, options in (("priority", switched), ("latency", {**switched, "clock": "simulated"})):
        devices = [("fake_npu", options)]
        with nna.InferenceSession(model, devices=devices, options={"policy": policy, "cache_dir": False}) as session:
            session.prepare({"x": (2, 3)})
            keys.update(_paths(json.loads(session.report().to_json())))
    return keys


def _paths(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            name = key if re.fullmatch(r"[a-z_]+", key) and not _is_name(path) else "NAME"
            yield f"{path}.{name}".lstrip(".")
            yield from _paths(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, f"{path}[]")


def _is_name(path: str) -> bool:
    """Check whether the keys below a path are names of devices, values or options."""
    return path.rpartition(".")[2] in ("input_shapes", "device_options", "devices", "versions", "NAME", "facts")


def _proto_lines() -> Iterator[str]:
    for path in sorted((_ROOT / "nnadapter").rglob("*.proto")):
        message = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            opened = re.match(r"\s*(?:message|enum) (\w+)", line)
            field = re.match(r"\s*(?:(?:optional|repeated) )?(?:[\w.<>, ]+ )?(\w+) = (\d+)", line)
            message = opened[1] if opened else message
            if field and not opened:
                yield f"{message}.{field[1]} = {field[2]}"


def _c_lines() -> Iterator[str]:
    text = Path(nna.get_include(), "nnadapter_driver.h").read_text(encoding="utf-8")
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    yield from sorted(set(re.findall(r"\b(?:nnadapter|NNADAPTER|nna|NNA)\w*\b", code)))
    yield from sorted({f"member {name}" for name in re.findall(r"(?:\(\*|\b)(\w+)(?:\)\([^;]*\)|\[\w*\])?;", code)})


if __name__ == "__main__":
    PATH.write_text(text_of(surface()), encoding="utf-8")
