"""Arguments and options that several sub-commands share, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from nnadapter import limits
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.errors import near_names
from nnadapter.options import FALLBACKS, Options, default_devices
from nnadapter.policies import POLICIES

Shapes = Mapping[str, tuple[int, ...]]
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

if TYPE_CHECKING:  # click has it as a generic class from 8.2 on
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice


class OneOf(_Choice):
    """One of some words; a word that is none of them is answered with the near ones."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            near = near_names(value, self.choices, "; ")
            self.fail(f"{value!r} is not one of {', '.join(self.choices)}{near}", param, ctx)


def takes_model(command: Decorated) -> Decorated:
    """Add MODEL, --device, --option, --shape and --fallback: `model`, `devices`, `options`, `shapes`, `fallback`."""
    for decorator in reversed((click.argument("model"), *_DECORATORS)):
        command = decorator(command)
    return command


def takes_settings_of_many(command: Decorated) -> Decorated:
    """Add what `takes_model` adds beside MODEL, but for --shape: any number of sets of shapes, `shape_sets`."""
    for decorator in reversed((*_DECORATORS[:2], _SHAPE_SETS, *_DECORATORS[3:])):
        command = decorator(command)
    return command


def takes_models(command: Decorated) -> Decorated:
    """Add MODELS, one or more, and what `takes_model` adds beside: `models`, and so on."""
    for decorator in reversed((click.argument("models", nargs=-1, required=True), *_DECORATORS)):
        command = decorator(command)
    return command


def takes_placing(command: Decorated) -> Decorated:
    """Add --policy, --rules and --plan: `settings`, a session's options by these, --fallback and --cache-dir."""

    @wraps(command)
    def with_settings(*, policy: str, rules: str | None, plan: str | None, fallback: str, **parameters: Any) -> Any:
        settings = Options(policy=policy, fallback=fallback, plan=plan, cache_dir=parameters.pop("cache_dir", None))
        return command(settings=settings if rules is None else replace(settings, rules=Path(rules)), **parameters)

    for decorator in reversed(_PLACING_DECORATORS):
        with_settings = decorator(with_settings)
    return cast("Decorated", with_settings)


def takes_cache(command: Decorated) -> Decorated:
    """Add --cache-dir: `cache_dir`."""
    return _CACHE(command)


def takes_inputs(command: Decorated) -> Decorated:
    """Add --input: `sources`, input name -> what `nnadapter.cli.inputs` makes an array of."""
    return _INPUTS(command)


def requests(devices: tuple[str, ...], options: Mapping[str, Mapping[str, str]]) -> list[DeviceRequest]:
    """Return what the library takes for devices: those named, else the default ones, each with its options.

    Raises:
        BadParameter: options are given for a device that is not chosen.
    """
    chosen = devices or tuple(default_devices())
    for device, own_options in options.items():
        if device not in chosen:
            raise click.BadParameter(
                f"{device}.{next(iter(own_options))} is for device {device!r}, which is not among {', '.join(chosen)}; "
                f"add -d {device}",
                param_hint="'--option'",
            )
    return [(name, options.get(name, {})) for name in chosen]


def _devices(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for value in values for name in value.split(","))
    if not all(names):
        raise click.BadParameter(f"{','.join(values)!r} holds an empty name; write -d fake_npu,cpu")
    return names


def _shapes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Shapes:
    shapes: dict[str, tuple[int, ...]] = {}
    for value in values:
        name, shape = _shape(value)
        _once(shapes, name)
        shapes[name] = shape
    return shapes


def _shape_sets(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Shapes, ...]:
    """Sets of shapes: the next one begins with an input that the last one has, and has the others of the last one."""
    sets: list[dict[str, tuple[int, ...]]] = []
    names: set[str] = set()
    for value in values:
        name, shape = _shape(value)
        if name in names or not sets:
            sets.append({**sets[-1]} if sets else {})
            names.clear()
        sets[-1][name] = shape
        names.add(name)
    return tuple(sets)


def _shape(value: str) -> tuple[str, tuple[int, ...]]:
    name, separator, sizes = value.rpartition("=")
    if not separator or not name or not all(size.strip().isdecimal() for size in sizes.split(",")):
        raise click.BadParameter(f"{value!r} is not a name and whole numbers; write NAME=1,3,224,224")
    shape = tuple(int(size) for size in sizes.split(","))
    if prod(shape) >= limits.SHAPE_ELEMENTS:
        raise click.BadParameter(f"{value!r} has more elements than any memory holds; write smaller sizes")
    return name, shape


def device_options(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> Mapping[str, Mapping[str, str]]:
    """Callback of --option: device -> option -> text."""
    options_by_device: dict[str, dict[str, str]] = {}
    for value in values:
        target, separator, text = value.partition("=")
        device, dot, name = target.rpartition(".")
        if not (separator and dot and device and name):
            raise click.BadParameter(f"{value!r} is not an option of a device; write DEVICE.NAME=VALUE")
        _once(options_by_device.get(device, {}), name)
        options_by_device.setdefault(device, {})[name] = text
    return options_by_device


def inputs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Mapping[str, str]:
    """Callback of --input: input name -> file, number, or `random`."""
    sources: dict[str, str] = {}
    for value in values:
        name, _, source = value.partition("=")
        if not name or not source:
            raise click.BadParameter(
                f"{value!r} is not an input; write NAME=FILE.npy, NAME=FILE.png, NAME=NUMBER or NAME=random"
            )
        _once(sources, name)
        sources[name] = source
    return sources


def _once(values_by_name: Mapping[str, object], name: str) -> None:
    if name in values_by_name:
        raise click.BadParameter(f"{name!r} is given twice; give it once")


_DECORATORS = (
    click.option(
        "-d", "--device", "devices", multiple=True, metavar="DEVICE", callback=_devices,
        help="A device, in order of preference: repeat it, or use commas. The CPU is the last one, named or not. "
        "Default: NNADAPTER_DEVICES, else cpu.",
    ),
    click.option(
        "--option", "options", multiple=True, metavar="DEVICE.NAME=VALUE", callback=device_options,
        help="An option of a device; the devices' options are listed below.",
    ),
    click.option(
        "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", callback=_shapes,
        help="Shape of an input whose sizes the model leaves open. Without it usual sizes are tried: the model's "
        "metadata, then batch 1 with 224, 320, 640, 128, 64, 32 for images and 128, 64, 32, 16, 8, 1, 16000 for "
        "others; the first that fits is taken and printed.",
    ),
    click.option(
        "--fallback", type=OneOf(FALLBACKS), default="warn", show_default=True,
        help="When something that a device should do is left to the CPU: a note, nothing, or an error (exit code 1).",
    ),
)  # fmt: skip

_CACHE = click.option(
    "--cache-dir", metavar="DIR",
    help="Keep what is compiled, and where nodes go, in DIR for the next start, and use what is there.",
)  # fmt: skip

_SHAPE_SETS = click.option(
    "--shape", "shape_sets", multiple=True, metavar="NAME=1,3,224,224", callback=_shape_sets,
    help="Shape of an input whose sizes the model leaves open. An input that is given once more begins another set of "
    "shapes, with the others as before. Without it, usual sizes and likely ones are tried.",
)  # fmt: skip

_PLACING_DECORATORS = (
    click.option(
        "--policy", type=OneOf(tuple(POLICIES)), default="priority", show_default=True,
        help=f"How nodes are placed: {'; '.join(f'{each.name}, {each.description}' for each in POLICIES.values())}.",
    ),
    click.option(
        "--rules", metavar="FILE", help="A TOML file of pins, bans and limits: what must run where, and what must not."
    ),
    click.option(
        "--plan", metavar="FILE",
        help="Place nodes as this plan says, made by --save-plan; what no longer binds is said, and placed as without.",
    ),
)  # fmt: skip
_INPUTS = click.option(
    "--input", "sources", multiple=True, metavar="NAME=FILE|NUMBER|random", callback=inputs,
    help="Contents of an input: FILE.npy, a picture (see `nnadapter run --help`), a number that all elements are (or "
    "true, or false), or random, which is the default.",
)  # fmt: skip
