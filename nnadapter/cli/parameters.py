"""Arguments and options that several commands share, model inputs, and output: files, JSON and progress bars."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import click
import numpy as np

from nnadapter import limits
from nnadapter.candidates.conversions import prepare
from nnadapter.candidates.pictures import PICTURE_SUFFIXES, picture_array
from nnadapter.candidates.random_feeds import SEED, Maker, feed_for, random_array
from nnadapter.cli.command import Failure
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.errors import InvalidInputError, near_names
from nnadapter.files.atomic_files import write_file
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.ir.operand import Array
from nnadapter.onnx.files import load_model
from nnadapter.onnx.signature import filled
from nnadapter.optional_parts import optional_part
from nnadapter.options import FALLBACKS, PRECISIONS, Options, default_devices
from nnadapter.policies import POLICIES
from nnadapter.records import dataclass, replace
from nnadapter.report.facts import plain
from partition.graph import Value

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 1.0
"""Seconds before a progress bar appears."""


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show a progress bar while the block runs, if it takes longer than `PATIENCE_S`.

    `total` is the number of calls of the yielded function; None if unknown.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    shown = columns if total is not None else columns[:2]
    bar = Progress(*shown, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=total)
    with delayed_display(bar):
        yield lambda: bar.advance(task)


@contextmanager
def delayed_display(display: Progress) -> Iterator[None]:
    """Show `display` if the block takes longer than `PATIENCE_S`."""
    lock = threading.Lock()
    is_finished = started = False

    def start() -> None:
        nonlocal started
        with lock:
            if not is_finished:
                display.start()
                started = True

    timer = threading.Timer(PATIENCE_S, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_finished = True
            if started:
                display.stop()


def write_output(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically. Raises Failure."""
    try:
        write_file(Path(path), write)
    except OSError as error:
        raise Failure(f"{str(Path(path))!r} cannot be written: {error.strerror or error}; give another path") from error


def make_folder(folder: Path) -> None:
    """Create a folder unless it exists. Raises Failure."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(
            f"folder {str(folder)!r} cannot be created: {error.strerror or error}; give another path"
        ) from error


def to_json(data: object) -> str:
    """Return JSON text with null for non-finite numbers."""
    return json.dumps(plain(data), indent=2, allow_nan=False)


Shapes = Mapping[str, tuple[int, ...]]
DeviceOptions = Mapping[str, Mapping[str, str]]
"""Device -> option -> text."""
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

if TYPE_CHECKING:  # click's class is generic only from 8.2 on
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice


class OneOf(_Choice):
    """Choice parameter that suggests close names."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            near = near_names(value, self.choices, "; ")
            self.fail(f"{value!r} is not one of {', '.join(self.choices)}{near}", param, ctx)


def composed(*decorators: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """Combine decorators, in the order of lines above a function."""

    def decorate(command: Decorated) -> Decorated:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def takes_placing(command: Decorated) -> Decorated:
    """Add --policy, --precision, --rules and --plan as `settings`."""

    @wraps(command)
    def with_settings(*, policy: str, rules: str | None, plan: str | None, fallback: str, **parameters: Any) -> Any:
        settings = Options(
            policy=policy, precision=parameters.pop("precision"), fallback=fallback, plan=plan,
            cache_dir=parameters.pop("cache_dir", None),
        )  # fmt: skip
        return command(settings=settings if rules is None else replace(settings, rules=Path(rules)), **parameters)

    return cast("Decorated", _PLACING(with_settings))


def requests(devices: tuple[str, ...], options: DeviceOptions) -> list[DeviceRequest]:
    """Return the named or default devices with their options. Raises BadParameter for other devices' options."""
    chosen = devices or tuple(default_devices())
    for device, own_options in options.items():
        if device not in chosen:
            raise click.BadParameter(
                f"{device}.{next(iter(own_options))} is for device {device!r}, which is not among {', '.join(chosen)}; "
                f"add -d {device}",
                param_hint="'--option'",
            )
    return [(name, options.get(name, {})) for name in chosen]


def requests_for(model: Any, devices: tuple[str, ...], options: DeviceOptions) -> list[DeviceRequest] | None:
    """Return the devices as `requests` does; None for a compiled model without `devices` and `options`."""
    is_ready = kind_of(model) is SourceKind.COMPILED and not (devices or options)
    return None if is_ready else requests(devices, options)


def _devices(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for value in values for name in value.split(","))
    if not all(names):
        raise click.BadParameter(f"{','.join(values)!r} contains an empty name; write -d fake_npu,cpu")
    return names


def _shapes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Shapes:
    shapes: dict[str, tuple[int, ...]] = {}
    for value in values:
        name, shape = _shape(value)
        _once(shapes, name)
        shapes[name] = shape
    return shapes


def _shape_sets(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Shapes, ...]:
    """Parse sets of shapes. A second shape for the same input starts another set, a copy of the current one."""
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
        raise click.BadParameter(f"{value!r} is not a shape; write NAME=1,3,224,224")
    shape = tuple(int(size) for size in sizes.split(","))
    if prod(shape) >= limits.SHAPE_ELEMENTS:
        raise click.BadParameter(f"{value!r} is too large for any memory; write smaller sizes")
    return name, shape


def device_options(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> DeviceOptions:
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
    """Parse --input into input name -> file, number or `random`."""
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
        raise click.BadParameter(f"{name!r} is set twice; set it once")


takes_device = click.option(
    "-d", "--device", "devices", multiple=True, metavar="DEVICE", callback=_devices,
    help=("Device to use, in order of preference. Repeat the option, or separate names by commas. The "
"CPU is always the last device. Default: NNADAPTER_DEVICES, otherwise cpu."),
)  # fmt: skip
takes_options = click.option(
    "--option", "options", multiple=True, metavar="DEVICE.NAME=VALUE", callback=device_options,
    help="Set an option of a device, named as in --device; the options of each device are listed below.",
)  # fmt: skip
_SHAPES = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", callback=_shapes,
    help=("Shape of an input with dynamic dimensions. Default: the shape in the model's metadata, or batch 1 with the "
"first of these sizes for which the model is valid: 224, 320, 640, 128, 64, 32 for images, otherwise 128, 64, 32, 16, "
"8, 1, 16000. It is printed."),
)  # fmt: skip
_SHAPE_SETS = click.option(
    "--shape", "shape_sets", multiple=True, metavar="NAME=1,3,224,224", callback=_shape_sets,
    help=("Shape of an input with dynamic dimensions. A second --shape for the same input starts another set of "
"shapes, in which other inputs keep theirs. Default: the shape in the model's metadata, or batch 1 with usual sizes "
"for which the model is valid."),
)  # fmt: skip
_FALLBACK = click.option(
    "--fallback", type=OneOf(FALLBACKS), default="warn", show_default=True,
    help=("Reaction when work planned for a device falls back to the CPU: warn with a note, allow it "
"silently, or forbid it with an error (exit code 1)."),
)  # fmt: skip

_takes_settings = composed(takes_device, takes_options, _SHAPES, _FALLBACK)
takes_settings_of_many = composed(takes_device, takes_options, _SHAPE_SETS, _FALLBACK)
"""Decorator that adds the options of `takes_model`, with several sets of shapes."""
takes_model = composed(click.argument("model"), _takes_settings)
"""Decorator that adds MODEL, --device, --option, --shape and --fallback."""
takes_models = composed(click.argument("models", nargs=-1, required=True), _takes_settings)
"""Decorator that adds one or more MODELS as `models`, and the options of `takes_model`."""
takes_cache = click.option(
    "--cache-dir", metavar="DIR",
    help="Cache compiled programs and plans in the folder DIR, and use those that are already there.",
)  # fmt: skip
takes_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
takes_format = click.option(
    "--format", "form", type=OneOf(("text", "json")), default="text", show_default=True, help="Output format."
)

_PLACING = composed(
    click.option(
        "--policy", type=OneOf(tuple(POLICIES)), default="priority", show_default=True,
        help=("Rule by which a device is chosen for each node. "
f"{'; '.join(f'{policy.name}: {policy.description}' for policy in POLICIES.values())}. "
"`nnadapter calibrate` measures costs."),
    ),
    click.option(
        "--precision", type=OneOf(PRECISIONS),
        help=("Precision of floating-point computation, on every device that has it. device: the default of each "
"device's own engine. auto: that default if the first outputs agree with float32 to 30 dB, otherwise float32. "
"Default: each device's own option `precision`."),
    ),
    click.option(
        "--rules", metavar="FILE",
        help=("TOML file with pins (nodes that must run on a device), bans (nodes that must not) and limits "
"(such as a maximum number of segments)."),
    ),
    click.option(
        "--plan", metavar="FILE",
        help=("Place nodes as in this plan file of `nnadapter report --save-plan`. Entries that no longer "
"apply are reported and ignored."),
    ),
)  # fmt: skip
takes_inputs = click.option(
    "--input", "sources", multiple=True, metavar="NAME=FILE|NUMBER|random", callback=inputs,
    help=("Contents of an input: FILE.npy, a picture (see `nnadapter run --help`), one number, true or false "
"for all elements, or random numbers, which are the default."),
)  # fmt: skip


RANDOM = "random"
_TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Feed:
    """Arrays by input name, with their sources."""

    arrays: Mapping[str, Array]
    sources: Mapping[str, str]


def converted(model: str, options: Options) -> Any:
    """Convert MODEL for a session if it is of PyTorch or Paddle; otherwise return it."""
    if optional_part("is_torch_module_name")(model):
        with progress("exporting from PyTorch"):
            return optional_part("torch_module_from_name")(model)
    if kind_of(model) is not SourceKind.PADDLE:
        return model
    with progress("converting from Paddle"):
        return optional_part("paddle_onnx_file")(model, options)


def feed_of(model: Any, shapes: Shapes, sources: Mapping[str, str]) -> Feed:
    """Return an array for every required input of `model` (from `converted`), and for those in `sources`.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read or contradicts itself.
        InvalidInputError: there is no such input, a file cannot be read, or a shape does not fit.
    """
    if kind_of(model) is SourceKind.COMPILED:
        return _feed_of_file(CompiledFile(model), shapes, sources)
    prepared = prepare(load_model(model))
    make, known_shapes = _loaded(prepared.graph.inputs, shapes, sources)
    arrays = feed_for(prepared, known_shapes, make=make, further_inputs=sources)
    return Feed(arrays, {name: sources.get(name, RANDOM) for name in arrays})


def _feed_of_file(file: CompiledFile, shapes: Shapes, sources: Mapping[str, str]) -> Feed:
    values = file.signature.by_name
    make, known_shapes = _loaded([*values], shapes, sources)
    every, generator = _completed(known_shapes, values, file.shapes(file.message.plans[0])), np.random.default_rng(SEED)
    fed = dict.fromkeys([*(value.name for value in file.signature.inputs), *sources])
    arrays = {name: make(values[name], every[name], generator) for name in fed}
    return Feed(arrays, {name: sources.get(name, RANDOM) for name in arrays})


def _loaded(input_names: Sequence[str], shapes: Shapes, sources: Mapping[str, str]) -> tuple[Maker, Shapes]:
    """Read the .npy files in `sources`; return the function that makes arrays, and the known shapes."""
    for name in sources:
        if name not in input_names:
            raise InvalidInputError(f"the model has no input {name!r}; its inputs are {list(input_names)}", name=name)
    loaded = {name: _load(name, source) for name, source in sources.items() if Path(source).suffix == ".npy"}
    known_shapes = {**shapes, **{name: array.shape for name, array in loaded.items()}}
    for name, shape in shapes.items():
        if known_shapes[name] != shape:
            raise InvalidInputError(
                f"input {name!r} has shape {list(known_shapes[name])} in its file and {list(shape)} in --shape; "
                "leave --shape out",
                name=name,
            )
    return partial(_load_or_generate, loaded, sources), known_shapes


def _completed(shapes: Shapes, values: Mapping[str, Value], first: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `first` updated with `shapes`. Named dimensions of other inputs get their sizes from `shapes` too."""
    explicit_sizes = _sizes_by_name(shapes, values)
    sizes = {**_sizes_by_name(first, values), **explicit_sizes}

    def size(dimension: object, otherwise: int) -> int:
        if not isinstance(dimension, str) or dimension in explicit_sizes:
            return explicit_sizes.get(dimension, otherwise)
        terms = [int(term) if term.isdigit() else sizes.get(term) for term in dimension.split(" + ")]
        resolved_terms = [term for term in terms if term is not None]
        return sum(resolved_terms) if len(resolved_terms) == len(terms) else otherwise

    followed = {
        name: shape if shape is None else tuple(map(size, values[name].shape or shape, shape))
        for name, shape in first.items()
    }
    return {**followed, **shapes}


def _sizes_by_name(shapes: Mapping[str, Any], values: Mapping[str, Value]) -> dict[object, int]:
    return {
        dimension: size
        for name, shape in shapes.items()
        if name in values and shape is not None
        for dimension, size in zip(values[name].shape or (), shape, strict=False)
        if isinstance(dimension, str)
    }


def _load_or_generate(
    loaded: Mapping[str, Array],
    sources: Mapping[str, str],
    value: Value,
    shape: tuple[int, ...] | None,
    generator: np.random.Generator,
) -> Array:
    array = loaded.get(value.name)
    contents = _generated_input(value, sources.get(value.name, RANDOM), shape, generator) if array is None else array
    return _named_type(contents, value.dtype)


def _generated_input(value: Value, source: str, shape: tuple[int, ...] | None, generator: np.random.Generator) -> Array:
    if source == RANDOM:
        return random_array(value, shape, generator)
    if Path(source).suffix.lower() in PICTURE_SUFFIXES:
        return picture_array(source, value.name, value.dtype, shape or ())
    number = number_of(source)
    if number is not None:
        return filled(value, number, shape)
    raise InvalidInputError(
        (
            f"input {value.name!r} is {source!r}, expected a .npy file, a picture "
            f"({', '.join(PICTURE_SUFFIXES)}), a number, true, false or random"
        ),
        name=value.name,
    )


def number_of(source: str) -> bool | int | float | None:
    """Parse a number, true or false; None for other texts."""
    if source in _TRUTHS:
        return _TRUTHS[source]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(source)
    return None


def values_of(sources: Mapping[str, str]) -> dict[str, Any]:
    """Read the inputs that are files or numbers; random ones are omitted. Raises InvalidInputError."""
    values: dict[str, Any] = {}
    for name, source in sources.items():
        value = _load(name, source) if Path(source).suffix == ".npy" else number_of(source)
        if value is None and source != RANDOM:
            raise InvalidInputError(
                f"input {name!r} is {source!r}, expected a .npy file, a number, true, false or random", name=name
            )
        values |= {} if value is None else {name: value}
    return values


def _named_type(array: Array, dtype: str | None) -> Array:
    """View an array as a type that .npy files lack, such as bfloat16."""
    if array.dtype.kind != "V" or dtype is None or np.dtype(dtype).itemsize != array.dtype.itemsize:
        return array
    return array.view(np.dtype(dtype))


def _load(name: str, path: str) -> Array:
    try:
        with Path(path).open("rb") as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
            return array
    except FileNotFoundError as error:
        raise InvalidInputError(f"file {path!r} of input {name!r} does not exist; check the path", name=name) from error
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise InvalidInputError(
            f"file {path!r} of input {name!r} cannot be read as .npy: {error}; write it with numpy.save", name=name
        ) from error
