"""Write the generated pages in docs/reference/ from the code: options, commands, devices, errors, reports, formats.

python docs/make_reference.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import fields as struct_fields

import nnadapter as nna
from nnadapter.cli import main
from nnadapter.cli.command import MODELS
from nnadapter.drivers import Option, faulty
from nnadapter.engine import PlanCounts
from nnadapter.planning import UnmatchedEntry, overlap
from nnadapter.report import facts, what_if_facts

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
GENERATED = "This page is generated from the code by `python docs/make_reference.py`."


def pages() -> Mapping[str, str]:
    """Return the pages by file name."""
    makers = {
        "options.md": _options,
        "commands.md": _commands,
        "devices.md": _devices,
        "errors.md": _errors,
        "report-keys.md": _report_keys,
        "faults.md": _faults,
        "formats.md": _formats,
        "modules.md": _modules,
    }
    return {name: "\n".join(maker()).rstrip() + "\n" for name, maker in makers.items()}


def _head(title: str, text: str = "") -> Iterator[str]:
    yield from (f"# {title}", "", GENERATED, "")
    if text:
        yield from (text, "")


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    yield from (f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows)
    yield ""


def _field_docs(kind: type) -> Mapping[str, str]:
    """Return the docstring below each field of a class; empty for fields without one."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    docs = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            is_doc = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            docs[statement.target.id] = following.value.value if is_doc else ""  # type: ignore[union-attr]
    return docs


def _options() -> Iterator[str]:
    yield from _head(
        "Options of a session", "Fields of `nnadapter.Options`, and keys of `options={...}` in `torch.compile`."
    )
    docs = _field_docs(nna.Options)
    rows = [(f"`{field.name}`", f"`{field.default!r}`", docs[field.name]) for field in dataclasses.fields(nna.Options)]
    yield from _table(("option", "default", "meaning"), rows)


def _commands() -> Iterator[str]:
    yield from _head(
        "Command line",
        f"`nnadapter COMMAND --help` prints the same, with the options of the devices of this machine.\n\n{MODELS} "
        "Commands other than `compile` also accept a compiled file.",
    )
    context = click.Context(main, info_name="nnadapter")
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        yield from _command(f"nnadapter {name}", command, context)


def _command(title: str, command: Any, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=title.split()[-1], parent=parent)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _command(f"{title} {name}", command.get_command(context, name), context)
        return
    yield from (f"## {title}", "")
    yield from (f"    {title} {' '.join(command.collect_usage_pieces(context))}", "")
    yield from (re.sub(r"\s*\f.*", "", inspect.cleandoc(command.help or ""), flags=re.DOTALL), "")
    options = [parameter for parameter in command.get_params(context) if isinstance(parameter, click.Option)]
    rows = []
    for option in options:
        record = option.get_help_record(context)
        if record is not None and "--help" not in option.opts:
            rows.append((f"`{record[0]}`", record[1]))
    if rows:
        yield from _table(("option", "meaning"), rows)


def _devices() -> Iterator[str]:
    from nnadapter.drivers.execution_providers.backing import OPTIONS as PROVIDER_OPTIONS
    from nnadapter.drivers.execution_providers.qnn import OPTIONS as QNN_OPTIONS
    from nnadapter.drivers.fake_npu import OPTIONS as FAKE_NPU_OPTIONS
    from nnadapter.drivers.openvino import driver as openvino
    from nnadapter.drivers.xla.driver import OPTIONS as XLA_OPTIONS

    yield from _head(
        "Device reference",
        "Options of each device, and what OpenVINO computes incorrectly. [Devices](../devices.md) describes them.\n"
        "Every accelerator also has the option `isolate` ([isolation](../failures.md#isolation)).",
    )
    every = frozenset(ability for ability, _ in openvino.PRECISIONS.values())
    tables: Mapping[str, Sequence[Option]] = {
        "fake_npu": FAKE_NPU_OPTIONS,
        "openvino": openvino.options_of(every, frozenset(("INFERENCE_NUM_THREADS",))),
        "qnn": QNN_OPTIONS,
        "ort:NAME": PROVIDER_OPTIONS,
        "xla": XLA_OPTIONS,
        "faulty:NAME": faulty.OPTIONS,
    }
    for name, options in tables.items():
        yield from (f"## Options of {name}", "")
        rows = [(f"`{option.name}`", _values(option), f"`{option.default!r}`", option.help) for option in options]
        yield from _table(("option", "values", "default", "meaning"), rows)
    yield from _openvino()


def _values(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    kind = "names" if isinstance(option.default, tuple) else type(option.default).__name__
    return kind if option.minimum is None else f"{kind}, at least {option.minimum}"


def _openvino() -> Iterator[str]:
    from nnadapter.drivers.openvino.verdicts import DATA_RESTRICTIONS, DYNAMIC_SHAPE_RESTRICTIONS, RESTRICTIONS
    from nnadapter.drivers.openvino.workarounds import WORKAROUNDS

    yield from (
        "## OpenVINO restrictions",
        "",
        "Forms of ops that the device `openvino` refuses, in addition to ops and data types outside its table.",
        "A refusal reads: the op, then the text.",
        "",
    )
    groups = (
        ("", RESTRICTIONS),
        ("dynamic shapes", DYNAMIC_SHAPE_RESTRICTIONS),
        ("data-dependent shapes", DATA_RESTRICTIONS),
    )
    rows = [(row.ops.replace(" ", ", ") or "any", row.detail, group) for group, table in groups for row in table]
    yield from _table(("op", "refused", "only with"), rows)
    yield from (
        "## OpenVINO workarounds",
        "",
        "Forms that OpenVINO computes incorrectly, and that the driver changes so that results are right.",
        "A test per row fails when the workaround is no longer needed.",
        "",
    )
    yield from _table(
        ("name", "defect", "workaround", "seen in"),
        [(row.name, row.defect, row.action, row.seen) for row in WORKAROUNDS],
    )


def _errors() -> Iterator[str]:
    yield from _head("Errors", "All are in `nnadapter.errors`. Messages are for people; programs read fields.")
    tree = inspect.cleandoc(nna.errors.__doc__ or "").split("\n\n")
    yield from ("```text", *(line.removeprefix("    ") for line in tree[1].splitlines()), "```", "")
    yield from ("Warnings:", "", "```text", *(line.removeprefix("    ") for line in tree[3].splitlines()), "```", "")
    yield from ("Device errors have these fields:", "")
    yield from _table(
        ("field", "meaning"),
        (
            ("`device`", "name of the device"),
            ("`phase`", f"call to the driver: {', '.join(f'`{phase}`' for phase in nna.errors.PHASES)}"),
            ("`segment`", "index of the segment in the plan, if known"),
            ("`nodes`", "names of the nodes, if known"),
        ),
    )


REPORT_PARTS: Mapping[str, type] = {
    "report": facts.ReportFacts,
    "coverage": facts.Coverage,
    "segments": facts.SegmentFacts,
    "segments.inputs, segments.outputs": facts.TensorFacts,
    "segments.cache": facts.CacheFacts,
    "nodes": facts.NodeFacts,
    "nodes.refusals": facts.RefusalFacts,
    "nodes.bodies": facts.BodyFacts,
    "plans": PlanCounts,
    "weights": facts.WeightFacts,
    "cost": facts.CostFacts,
    "cost.candidates": facts.CandidateFacts,
    "rules": facts.RuleFacts,
    "plan_file": facts.PlanFileFacts,
    "plan_file.unmatched_entries": UnmatchedEntry,
    "refusal_costs": facts.RefusalCost,
    "boundaries": overlap.Boundaries,
    "boundaries.operations": overlap.BoundaryOperation,
    "boundaries.operations.source, boundaries.operations.target": overlap.ValuePlace,
    "boundaries.device_resident": overlap.DeviceResidentValue,
    "boundaries.host_waits": overlap.HostWait,
    "transfers": facts.TransferFacts,
    "branch_decisions": facts.BranchDecisionFacts,
}
WHAT_IF_PARTS: Mapping[str, type] = {
    "what-if": what_if_facts.WhatIfFacts,
    "current_totals, resulting_totals": what_if_facts.PlanTotals,
    "features": what_if_facts.FeatureFacts,
    "road_map": what_if_facts.RoadStep,
    "models": what_if_facts.ModelFacts,
    "failed": what_if_facts.FailedModel,
}


def _report_keys() -> Iterator[str]:
    yield from _head(
        "Keys of reports in JSON",
        "`nnadapter report --format json` and `PartitionReport.to_dict`. Times are seconds, sizes bytes. Unknown\n"
        "values are `null`. `schema_version` grows when a key disappears or changes its meaning.",
    )
    yield from _keys(REPORT_PARTS)
    yield from ("# Keys of what-if reports", "", "`nnadapter report --what-if --format json`.", "")
    yield from _keys(WHAT_IF_PARTS)


def _keys(parts: Mapping[str, type]) -> Iterator[str]:
    for number, (title, kind) in enumerate(parts.items()):
        docs = _field_docs(kind)
        rows = [(f"`{field.name}`", docs.get(field.name, "")) for field in dataclasses.fields(kind)]
        if number == 0:
            rows.insert(0, ("`schema_version`", "version of this format"))
        yield from (f"## {title}", "")
        yield from _table(("key", "meaning"), rows)


_PHASE_CALLS = {
    "open": "`Driver.open`",
    "context": "`Device.create_context`",
    "judge": "`Context.supported`",
    "admit": "`Context.admit`",
    "compile": "`Context.compile`, `compile_whole_graph` and `clone_with_constants`",
    "deserialize": "`Context.deserialize`, `deserialize_view` and `check_blob`; `Program.serialize`",
    "create": "`Program.create_execution`",
    "run": "`Execution.compute` and all others that compute",
    "close": "`close` of executions, programs and contexts",
}


def _faults() -> Iterator[str]:
    yield from _head(
        "Fault scripts", "Scripts of the device `faulty:NAME`, see [faults on demand](../failures.md#faults-on-demand)."
    )
    yield from ("## Keys of a script", "")
    docs = _field_docs(faulty.Script)
    rows = [(f"`{name}`", text) for name, text in docs.items() if name != "faults"]
    yield from _table(("key", "meaning"), rows)
    yield from (
        "## Keys of a fault",
        "",
        "An entry `[[fault]]`. All conditions must hold. Calls are counted per program for its",
        "runs, creations and closings, and per context otherwise.",
        "",
    )
    docs = _field_docs(faulty.Fault)
    names = {field.name: field.encode_name for field in struct_fields(faulty.Fault)}
    given = {
        "kind": "Kind of fault, see below.",
        "phase": "Call at which it occurs, see below.",
        "message": "Text of the exception.",
    }
    yield from _table(("key", "meaning"), [(f"`{key}`", docs.get(name) or given[name]) for name, key in names.items()])
    yield from ("## Phases", "")
    yield from _table(("phase", "calls"), [(f"`{phase.value}`", _PHASE_CALLS[phase.value]) for phase in faulty.Phase])
    yield from ("## Kinds", "")
    rows = []
    for kind, row in faulty.KINDS.items():
        named = [f"`{phase.value}`" for phase in faulty.Phase if phase in row.phases]
        where = "all" if len(named) == len(faulty.Phase) else ", ".join(named)
        rows.append((f"`{kind.value}`", row.description, where, ", ".join(f"`{key}`" for key in row.keys)))
    yield from _table(("kind", "effect", "phases", "keys"), rows)


_MODEL_FORMAT = """
## Adapter IR files

`nnadapter.ir.protobuf.save` writes a model as two files in one folder: the message `File`, and a data file with the
contents of its constants, which loading maps into memory. `to_bytes` and `from_bytes` do the same without files.
`nnadapter export` writes a model as ONNX.

```python
import tempfile
from pathlib import Path

import numpy as np

from nnadapter.ir import DataType, ModelBuilder, OperandType, to_text
from nnadapter.ir.protobuf import load, save

builder = ModelBuilder()
x = builder.add_input("x", OperandType(DataType.FLOAT32, (2, 3)))
weight = builder.add_constant("weight", np.ones((4, 3), np.float32))
model = builder.finish(builder.add_operation("FULLY_CONNECTED", (x, weight)))

with tempfile.TemporaryDirectory() as folder:
    save(model, Path(folder, "small.model"))
    print(sorted(path.suffix for path in Path(folder).iterdir()))
    assert to_text(load(Path(folder, "small.model"))) == to_text(model)
```

- The first 17 bytes are those of field 1. The same model gives the same bytes.
- Elements are in C order, little-endian. A bool is one byte. Two 4-bit elements share a byte, low half first. Blocks
  are aligned to 64 bytes; equal contents are stored once.
- Files are written under another name and renamed, the data file first. Its name contains a digest of its contents.
- A reader refuses newer versions and unknown fields, operations and attributes with an `InvalidModelError`. Digests
  detect damage; they are not signatures.
- While a loaded model lives, its data file may be replaced or removed, but not changed.
"""
_COMPILED_FORMAT = """
## Compiled files

| bytes | content |
|---|---|
| 0 to 63 | prefix, little-endian: magic `89 4E 4E 41 0D 0A 1A 0A`, version and 0 (uint32 each), \
offset and length of the table (uint64 each), SHA-256 of the table |
| then | parts, aligned to 64 bytes, or to 4,096 if they are at least that long; zeros between them |
| last | the table: the message `Table` |

The part `model` is the message `CompiledModel`, which refers to other parts by their index. A segment in adapter IR
is a `Model` whose constants are named by the SHA-256 of their parts. Parts are checked by CRC-32 before first use;
`nnadapter compile --check` verifies SHA-256 of every part. A reader refuses newer versions, unknown fields,
overlapping parts, and files that do not end with their table. Everything in the message is validated when the file is
opened. The file contains no code, no pickle and no paths.
"""


def _formats() -> Iterator[str]:
    yield from _head(
        "File formats",
        "Protobuf messages of nnadapter's files, with field numbers. A field keeps its number, type and meaning.",
    )
    for text, protos in (
        (_MODEL_FORMAT, ("nnadapter/ir/model.proto",)),
        (_COMPILED_FORMAT, ("nnadapter/store/container.proto", "nnadapter/engine/compiled_model.proto")),
    ):
        yield from text.strip("\n").splitlines()
        yield ""
        for proto in protos:
            yield from _messages((ROOT / proto).read_text(encoding="utf-8"))


_FIELD = re.compile(r"(?:(repeated|optional) )?([\w.]+(?:<[^>]+>)?) (\w+) = (\d+);")


def _messages(text: str) -> Iterator[str]:
    """Yield a table for each message of a .proto file, with the comments of its fields."""
    comment: list[str] = []
    rows: list[tuple[str, ...]] = []
    name = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
            continue
        if found := re.match(r"message (\w+) \{", line):
            name = found[1]
            yield from (f"### {name}", "")
            if comment:
                yield from (" ".join(comment), "")
        elif found := _FIELD.match(line):
            kind = f"{found[1]} {found[2]}" if found[1] else found[2]
            rows.append((f"`{found[3]}`", found[4], kind, " ".join(comment)))
        comment = []
        if line == "}" and name and rows:
            yield from _table(("field", "number", "type", "meaning"), rows)
            rows = []


def _modules() -> Iterator[str]:
    yield from _head(
        "Modules",
        "Every module in one sentence. [Architecture](../architecture.md) describes the packages and their layers.",
    )
    for package in ("partition", "nnadapter"):
        for folder in sorted({path.parent for path in (ROOT / package).rglob("*.py")}):
            modules = sorted(folder.glob("*.py"))
            yield from (f"## {folder.relative_to(ROOT).as_posix()}", "")
            if modules[0].name == "__init__.py":
                yield from (_summary(modules.pop(0)), "")
            yield from (f"- `{path.name}`: {_summary(path)}" for path in modules)
            yield ""


def _summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, f"{path} has no docstring"
    return " ".join(text.split("\n\n")[0].split())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, content in pages().items():
        (FOLDER / file_name).write_text(content, encoding="utf-8")
