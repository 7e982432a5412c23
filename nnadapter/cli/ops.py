"""`nnadapter ops`: what a device takes, from the table that its driver decides by; what an operation means."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import click

from nnadapter.cli.command import Command
from nnadapter.cli.output import to_json
from nnadapter.drivers.capability import Capability, OperationSupport
from nnadapter.drivers.registry import open_device
from nnadapter.drivers.selection import CPU, REFERENCE
from nnadapter.ir.operand import ANY, DataType
from nnadapter.process.terminal import prints_to_stderr

_WIDTH = 100
_HOSTS = {
    CPU: "cpu takes every operation that nobody else takes: ONNX Runtime runs it, as it runs any ONNX model.",
    REFERENCE: "reference takes what not even cpu takes: onnx's reference evaluator runs it, slowly.",
}


@click.command(cls=Command)
@click.argument("device", required=False)
@click.option("--describe", metavar="OPERATION", help="Say what an operation of the adapter IR means, such as CONV_2D.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ops(device: str | None, describe: str | None, as_json: bool) -> None:
    """List what DEVICE takes, operation by operation, with its limits; or describe one operation.

    Operations are those of the adapter IR, or domain::op_type for devices that take ONNX. Data types and ranks are
    those of the first input.
    """
    if (device is None) is (describe is None):
        raise click.UsageError("Give either DEVICE, such as fake_npu, or --describe OPERATION, such as CONV_2D.")
    if describe is not None:
        click.echo(_described(describe, as_json))
    elif device is not None:
        _list_operations(device, as_json)


def _described(type_: str, as_json: bool) -> str:
    from nnadapter.ir.definition.reference import (  # only this command reads it
        entry_of,
        operation_called,
        to_dict,
        to_text,
    )

    entry = entry_of(operation_called(type_))
    return to_json(to_dict(entry)) if as_json else to_text(entry)


def _list_operations(device: str, as_json: bool) -> None:
    with prints_to_stderr():
        capability = open_device(device).capability
    note = "" if capability.operations else _without_table(device)
    if as_json:
        operations = [_operation_row(operation) for operation in capability.operations]
        about = {"device": device, "form": capability.form.value, "note": note, "limits": capability.limits}
        click.echo(to_json({**about, "operations": operations}))
        return
    for line in [note] if note else _lines(capability):
        click.echo(line)


def _without_table(device: str) -> str:
    name = device.partition(":")[0]
    if name in _HOSTS:
        return _HOSTS[name]
    return (
        f"device {device!r} has no table of operations: it decides operation by operation when it is asked. "
        f"See what it takes of a model with `nnadapter report MODEL -d {device}`."
    )


def _lines(capability: Capability) -> Iterator[str]:
    width = max(len(operation.type) for operation in capability.operations)
    yield f"{'operation':<{width}}  rank  data types of the first input; limits"
    for operation in capability.operations:
        text = "; ".join(filter(None, (_dtypes(operation), operation.limits)))
        head = f"{operation.type:<{width}}  {_ranks(operation):<4}  "
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False
        )
    if capability.limits:
        yield from textwrap.wrap(capability.limits, _WIDTH)


def _ranks(operation: OperationSupport) -> str:
    low, high = operation.ranks
    return str(low) if low == high else f"{low}-{high}"


def _dtypes(operation: OperationSupport) -> str:
    return "any" if operation.dtypes >= ANY else ", ".join(_ordered(operation))


def _ordered(operation: OperationSupport) -> list[str]:
    return [dtype.value for dtype in DataType if dtype in operation.dtypes]


def _operation_row(operation: OperationSupport) -> dict[str, Any]:
    return {
        "type": operation.type,
        "dtypes": _ordered(operation),
        "ranks": list(operation.ranks),
        "limits": operation.limits,
    }
