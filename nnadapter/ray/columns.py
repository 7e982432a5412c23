"""Which column feeds which input, held against the model and, before anything runs, what is known of the data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnadapter.errors import InputTypeError, InvalidInputError, MissingInputError, close_names
from nnadapter.onnx.signature import Signature
from partition.graph import Value


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What is known of a column's rows before any was read."""

    dtype: str | None
    """None where it is not known."""
    shape: tuple[int, ...] | None
    """Of one row; None where it differs or is not known."""


def columns_by_input(signature: Signature, columns: Mapping[str, str] | None) -> dict[str, str]:
    """Return the column of every input; where nothing is said, the column that is called like it.

    Raises:
        InvalidInputError: an input is not the model's, or no tensor.
        MissingInputError: one that must be fed has no column.
    """
    if columns is not None and not isinstance(columns, Mapping):
        raise InvalidInputError(f"columns are a dictionary from input name to column, got {type(columns).__name__}")
    resolved_columns = {value.name: value.name for value in signature.inputs} if columns is None else dict(columns)
    for name, column in resolved_columns.items():
        if name not in signature.by_name:
            raise InvalidInputError(
                f"columns name an input {name!r}, which the model has not; {close_names(name, signature.by_name)}",
                name=str(name),
            )
        if not isinstance(column, str):
            raise InvalidInputError(f"the column of input {name!r} is a name, got {column!r}", name=name)
        dtype = signature.by_name[name].dtype
        if dtype is None or "(" in dtype:
            raise InvalidInputError(f"input {name!r} is a {dtype or 'value'}, and columns hold tensors", name=name)
    for value in signature.inputs:
        if value.name not in resolved_columns and not (value.dtype or "").startswith("optional"):
            raise MissingInputError(
                f"input {value.name!r} has no column; say columns={{{value.name!r}: COLUMN}}", name=value.name
            )
    return resolved_columns


def check_outputs(
    signature: Signature, outputs: Sequence[str] | None, passthrough_columns: Iterable[str]
) -> tuple[str, ...]:
    """Return the outputs that become columns.

    Raises:
        InvalidInputError: one is not the model's, or would take the place of a column that is kept.
    """
    names = (outputs,) if isinstance(outputs, str) else outputs
    chosen = tuple(signature.check_outputs(names))
    for name in chosen:
        if name in passthrough_columns:
            raise InvalidInputError(
                f"output {name!r} would take the place of the column of that name; leave it out of keep, or rename it "
                "by dataset.rename_columns",
                name=name,
            )
    return chosen


def check_names(columns: Mapping[str, str], passthrough_columns: Iterable[str], names: Iterable[str]) -> None:
    """Refuse columns that the data has not.

    Raises:
        InvalidInputError: there is no such column.
    """
    existing_columns = list(names)
    for name, column in (*columns.items(), *(("", column_name) for column_name in passthrough_columns)):
        if column not in existing_columns:
            use = f"for input {name!r} " if name else "that is to be kept "
            raise InvalidInputError(
                f"column {column!r} {use}is not in the dataset; {close_names(column, existing_columns)}",
                name=name or column,
            )


def check_types(signature: Signature, columns: Mapping[str, str], types: Mapping[str, ColumnType]) -> None:
    """Refuse what is known to have another data type or shape than the model takes.

    Raises:
        InputTypeError, InvalidInputError: a column does not fit.
    """
    for name, column in columns.items():
        value, column_type = signature.by_name[name], types.get(column)
        if column_type is None:
            continue
        if column_type.dtype is not None:
            check_dtype(value, column, column_type.dtype)
        if column_type.shape is not None and value.shape is not None:
            check_row(value, column, column_type.shape)


def check_dtype(value: Value, column: str, dtype: str) -> None:
    """Refuse a column of another data type.

    Raises:
        InputTypeError: it is one.
    """
    if dtype != value.dtype:
        raise InputTypeError(
            f"column {column!r} holds {dtype}, and input {value.name!r} takes {value.dtype}; convert it before, with "
            f".astype({value.dtype!r}) in a map_batches of its own",
            name=value.name,
        )


def check_row(value: Value, column: str, shape: tuple[int, ...]) -> bool:
    """Return whether rows of this shape lie along the first axis of an input; else a row is all of the input.

    Raises:
        InvalidInputError: neither fits.
    """
    declared = value.shape
    assert declared is not None, "asked only where the model says a shape"
    for is_batch, expected_shape in ((True, declared[1:]), (False, declared)):
        has_axis = len(declared) > 0 or not is_batch
        if has_axis and len(shape) == len(expected_shape) and all(
            size == want or not isinstance(want, int) for size, want in zip(shape, expected_shape, strict=True)
        ):  # fmt: skip
            return is_batch
    raise InvalidInputError(
        f"rows of column {column!r} have shape {list(shape)}, and input {value.name!r} takes {list(declared)}: rows of "
        f"{list(declared[1:])} as a batch, or of {list(declared)} one by one",
        name=value.name,
    )


def types_of(schema: Any) -> dict[str, ColumnType]:
    """What a schema of Ray Data says of its columns."""
    return {name: _type_of(kind) for name, kind in zip(schema.names, schema.types, strict=True)}


def _type_of(kind: Any) -> ColumnType:
    """A type of Arrow, or of tensors in it; what is none of numpy's is not known."""
    inner = getattr(kind, "scalar_type", kind)
    shape = getattr(kind, "shape", None) if inner is not kind else ()
    to_pandas = getattr(inner, "to_pandas_dtype", None)
    try:
        dtype = np.dtype(to_pandas()) if to_pandas is not None else np.dtype(inner)
    except (NotImplementedError, TypeError):
        return ColumnType(None, None)
    if dtype.kind == "O":  # texts, lists, pictures: seen when they are read
        return ColumnType(None, None)
    sizes = None if shape is None or any(size is None for size in shape) else tuple(int(size) for size in shape)
    return ColumnType(dtype.name, sizes)
