"""Write docs/operations/, the reference of the adapter IR's operations, from the schema table and what is said with it.

    python docs/make_operations.py

One page per family and an index. `nnadapter ops --describe OPERATION` prints the same entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from nnadapter.ir.definition import Entry, entry_of, example_text, facts, formula_text, signature_text
from nnadapter.ir.operations import FAMILIES, FUSE_CODES

FOLDER = Path(__file__).with_name("operations")
_MADE = "This page is generated from the code by `python docs/make_operations.py`."


def pages() -> Mapping[str, str]:
    """Return the pages by file name."""
    entries = {family: [entry_of(row.type) for row in rows] for family, rows in FAMILIES.items()}
    return {
        "README.md": "\n".join(_index(entries)) + "\n",
        **{f"{family}.md": "\n".join(_family(family, told)) + "\n" for family, told in entries.items()},
    }


def _title(family: str) -> str:
    return family.replace("_", " ").capitalize()


def _index(entries: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    yield "# Operations of the adapter IR"
    yield ""
    count = sum(map(len, entries.values()))
    yield f"Definitions of the {count} operations, for authors of drivers, converters and passes, and for people who"
    yield "build models by hand. `nnadapter ops --describe CONV_2D` prints an entry in a terminal, `--json` as JSON."
    yield "Operations that other packages bring are described there as well."
    yield ""
    yield _MADE
    yield from _RULES.splitlines()
    yield ""
    yield "## Fuse codes"
    yield ""
    yield "Activations that an operation applies to its own result; `fuse_parameters` holds their parameters."
    yield ""
    yield "| fuse_code | fuse_parameters | FLOPs per element |"
    yield "|---|---|---|"
    yield from (f"| `{code}` | {', '.join(names)} | {steps} |" for code, (names, steps) in FUSE_CODES.items())
    yield ""
    yield "## Families"
    yield ""
    yield "| family | operations |"
    yield "|---|---|"
    for family, told in entries.items():
        links = ", ".join(f"[{entry.type}]({family}.md#{entry.type.lower()})" for entry in told)
        yield f"| [{_title(family)}]({family}.md) | {links} |"


_RULES = """
## How to read an entry

- **Signature**: inputs, then attributes in the order of the table, then outputs. `?` is optional, `…` any number.
- **Formula**: letters are explained at the inputs. Indices count from 0. `floor`, `ceil` and `trunc` round down, up and
  toward 0.
- **Definition**: numpy code of the operation, with the functions that it calls. `xp` is numpy. A fused activation
  follows it. Image operations receive [N, C, H, W] in every layout.
- **Example**: computed by the definition when this page was generated.
- **FLOPs**: arithmetic steps; a multiply-add counts two, and exp, log, sqrt, erf, sin, cos, tanh and pow count one.

## Rules for all operations

- The definition computes floating-point values in float64 and rounds once, to the data type of the result. Devices must
  agree within the tolerance of their arithmetic.
- Integers are computed in their own data type and wrap around.
- Axes are 0 to rank - 1. Sizes, axes and pads are resolved: none is negative, omitted or -1, unless an entry allows it.
- Shapes are known at compile time, or symbolic on devices that support dynamic shapes.
- Operands of rank 4 may have the layout NHWC if an entry allows it, or if the operation is elementwise. Their
  dimensions are then [N, H, W, C]. Filters keep ONNX's order. An axis, or a list with a number per axis (pads of PAD,
  shape of RESIZE_LINEAR), counts the dimensions as stored.
- A quantized operand holds integers that represent reals: scale * (integer - zero point). Each entry describes its
  behavior on quantized operands.
- Operations have no side effects and never change inputs.
"""


def _family(family: str, entries: Sequence[Entry]) -> Iterator[str]:
    yield f"# {_title(family)}"
    yield ""
    yield from (import_module(f"nnadapter.ir.operations.{family}").__doc__ or "").strip().splitlines()
    yield ""
    yield f"[All operations](README.md). {_MADE}"
    yield ""
    yield " · ".join(f"[{entry.type}](#{entry.type.lower()})" for entry in entries)
    for entry in entries:
        yield from ("", f"## {entry.type}", "", entry.summary, "", "```text", signature_text(entry), "```")
        yield from _table("input", ("types", "meaning"), entry.inputs)
        yield from _table("attribute", ("kind", "default", "meaning"), [_with_choices(row) for row in entry.attributes])
        yield from _table("output", ("meaning",), entry.outputs)
        yield from ("", "**Formula**", "", "```text", formula_text(entry), "```")
        if entry.example is not None:
            yield from ("", f"**Example**, {entry.example.flops} FLOPs", "", "```text", example_text(entry), "```")
        yield from ("", "**Traps**", "") if entry.traps else ()
        yield from (f"- {trap}" for trap in entry.traps)
        yield from ("", "| more | |", "|---|---|")
        yield from (f"| {name} | {_cell(text)} |" for name, text in facts(entry))
        if entry.definition:
            yield from ("", "<details><summary>Definition in numpy</summary>", "", "```python", entry.definition, "```")
            yield from ("", "</details>")


def _with_choices(row: Mapping[str, str]) -> Mapping[str, str]:
    return {**row, "kind": f"{row['kind']}: {row['choices']}" if row["choices"] else row["kind"]}


def _table(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield f"| {' | '.join((title, *columns))} |"
    yield "|---" * (len(columns) + 1) + "|"
    for row in rows:
        cells = (f"`{row['name']}`", *(_cell(row[column]) for column in columns))
        yield f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
