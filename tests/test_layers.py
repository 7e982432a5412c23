"""Import order of the packages, read from the source."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from nnadapter import optional_parts
from tests.every import for_every

ROOT = Path(__file__).parent.parent


def _modules(names: str) -> tuple[str, ...]:
    return tuple(f"nnadapter.{name}" for name in names.split())


_PARTITION = ("graph", "plan", "by_cost", "")
_NNADAPTER = (
    "errors include limits optional_parts policies records",
    "process files",
    "ir traces",
    "onnx",
    "converters drivers",
    "exporting rules kernels",
    "options",
    "session.device",
    "session.compilation",
    "eager store",
    "candidates",
    "costs",
    "planning",
    "engine",
    "accuracy",
    "report",
    "session",
    "quantization",
    "tuning",
    "torch",
    "ort backend new_driver paddle ray testing",
    "cli",
    "__main__",
)
RANKS = [
    *(tuple(f"partition.{name}" if name else "partition" for name in row.split(" ")) for row in _PARTITION),
    *map(_modules, _NNADAPTER),
]
"""Ranks, lowest first. A module may import its own package and lower ranks; docs/architecture.md has the same list."""
PUBLIC = ("nnadapter",)
"""The package's `__init__`, which imports lazily."""

ONNX = _modules(
    "onnx drivers.onnxruntime drivers.execution_providers drivers.openvino drivers.reference "
    "drivers.reference_operators backend testing.onnx_cases quantization"
)
ONNXRUNTIME = _modules(
    "process.real_onnxruntime onnx.onnxruntime_limits onnx.preparation.folding drivers.onnxruntime "
    "drivers.execution_providers ray.actors engine.host ort session.session session.binding "
    "paddle.predictor paddle.worker quantization cli"
)


OPTIONAL = _modules("drivers.execution_providers drivers.faulty drivers.openvino drivers.xla paddle ray testing torch")
"""Parts with additional requirements; the core reaches them only through `nnadapter.optional_parts`."""
COMMANDS_OF_PARTS = _modules("cli.conformance cli.serve")
"""Commands of optional parts; the command line imports them by name."""


@functools.cache
def modules() -> Mapping[str, Path]:
    found = {}
    for package in ("partition", "nnadapter"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return MappingProxyType(found)


@functools.cache
def imports(path: Path, *, typing_too: bool = False) -> frozenset[str]:
    """Return absolute names of a file's imports, in functions too; those for type checkers only if asked."""
    return frozenset(name for name, typing in imported(path) if typing_too or not typing)


@functools.cache
def imported(path: Path) -> frozenset[tuple[str, bool]]:
    """Return each imported name, and whether it is only for type checkers."""
    found: set[tuple[str, bool]] = set()
    for node, typing in statements(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            found.update((alias.name, typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found.add((str(node.module), typing))
            found.update((f"{node.module}.{alias.name}", typing) for alias in node.names)
    return frozenset(found)


def statements(body: Sequence[ast.AST], typing: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield all statements, nested ones too, and whether each is only for type checkers."""
    for node in body:
        yield node, typing
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            for_types = block == "body" and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            yield from statements(getattr(node, block, ()), typing or for_types)


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def row(name: str) -> tuple[int, str]:
    rooms = [(index, room) for index, rank in enumerate(RANKS) for room in rank if within(name, room)]
    assert rooms, f"{name} stands in no row of RANKS"
    return max(rooms, key=lambda found: len(found[1]))


@for_every(name=[name for name in modules() if name not in PUBLIC])
def test_imports_follow_the_layers(name):
    rank, room = row(name)
    known = modules()
    for imported in imports(modules()[name]) & known.keys() - set(PUBLIC):
        other, other_room = row(imported)
        assert other < rank or room == other_room, f"{name} imports {imported}, which stands above it or beside it"


OPENVINO = ("nnadapter.drivers.openvino.engine",)
TORCH = ("nnadapter.torch",)
PADDLE = ("nnadapter.paddle.worker",)
XLA = ("nnadapter.drivers.xla",)
RAY = ("nnadapter.ray",)


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("onnx", ONNX),
        ("onnxruntime", ONNXRUNTIME),
        ("openvino", OPENVINO),
        ("torch", TORCH),
        ("onnxscript", TORCH),
        ("paddle", PADDLE),
        ("paddle2onnx", PADDLE),
        ("jax", XLA),
        ("jaxlib", XLA),
        ("ray", RAY),
    ],
)
def test_external_packages_have_allowed_importers(package, allowed):
    names = (package, f"nnadapter.process.real_{package}")
    for name, path in modules().items():
        uses = any(within(imported, each) for imported in imports(path) for each in names)
        assert not uses or any(within(name, room) for room in allowed), f"{name} imports {package}"


def test_only_one_module_imports_onnxruntime_by_name():
    importing = [name for name, path in modules().items() if "onnxruntime" in imports(path)]
    assert importing == ["nnadapter.process.real_onnxruntime"]


def test_partition_does_not_import_nnadapter():
    for name, path in modules().items():
        if within(name, "partition"):
            assert not any(within(imported, "nnadapter") for imported in imports(path, typing_too=True)), name


def test_there_are_no_import_cycles():
    known = modules()
    edges = {name: (imports(path, typing_too=True) & known.keys()) - {name} for name, path in known.items()}
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if state.get(name) == 2:
            return
        assert state.get(name) != 1, f"a circle of imports: {' -> '.join((*trail, name))}"
        state[name] = 1
        for other in sorted(edges[name] - set(PUBLIC)):
            visit(other, (*trail, name))
        state[name] = 2

    for name in sorted(known):
        visit(name, ())


def test_there_are_no_utility_modules():
    assert not [name for name in modules() if name.rsplit(".", 1)[-1] in ("utils", "helpers", "common", "misc")]


def test_core_imports_no_optional_part():
    for name, path in modules().items():
        if not name.startswith((*OPTIONAL, *COMMANDS_OF_PARTS)):
            found = [other for other in imports(path) if other.startswith(OPTIONAL)]
            assert found == [], f"{name} imports {found}; give it an entry in nnadapter.optional_parts"


def test_targets_of_optional_parts_exist():
    for target in (*optional_parts.DRIVERS.values(), *optional_parts.ENTRIES.values()):
        module, _, attribute = target.partition(":")
        assert module.startswith(OPTIONAL)
        names = set()
        for node in ast.walk(ast.parse(modules()[module].read_text())):
            names |= {getattr(node, field, None) for field in ("id", "name", "asname")}
        assert attribute in names, target
