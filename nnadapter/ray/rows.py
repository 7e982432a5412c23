"""Conversion of dataset rows to feeds, and of outputs to rows.

1. Rows of one shape are stacked along the inputs' first axis, up to the maximum rows of a run.
2. If that axis is static, the last feed is padded, and the results of the padding are dropped.
3. If a row is an entire input, or an output has no axis of rows, the model runs row by row.

An actor call has a fixed cost, so each call gets thousands of small rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from nnadapter.errors import InputTypeError, InvalidInputError, MissingInputError, close_names
from nnadapter.ir.operand import Array, array_type_of
from nnadapter.onnx.signature import Signature
from nnadapter.records import dataclass
from partition.graph import Value


@dataclass(frozen=True, slots=True)
class ColumnType:
    """Data type and shape of a column's rows, before any is read."""

    dtype: str | None
    shape: tuple[int, ...] | None


def columns_by_input(signature: Signature, columns: Mapping[str, str] | None) -> dict[str, str]:
    """Return input -> column; by default the columns of the same names.

    Raises:
        InvalidInputError: an input is unknown or not a tensor.
        MissingInputError: a required input has no column.
    """
    if columns is not None and not isinstance(columns, Mapping):
        raise InvalidInputError(f"columns must be a dictionary from input name to column, got {type(columns).__name__}")
    resolved_columns = {value.name: value.name for value in signature.inputs} if columns is None else dict(columns)
    for name, column in resolved_columns.items():
        if name not in signature.by_name:
            raise InvalidInputError(
                f"columns name an input {name!r} that the model does not have; {close_names(name, signature.by_name)}",
                name=str(name),
            )
        if not isinstance(column, str):
            raise InvalidInputError(f"the column of input {name!r} must be a name, got {column!r}", name=name)
        dtype = signature.by_name[name].dtype
        if dtype is None or "(" in dtype:
            raise InvalidInputError(f"input {name!r} is a {dtype or 'value'}, but columns contain tensors", name=name)
    for value in signature.inputs:
        if value.name not in resolved_columns and not (value.dtype or "").startswith("optional"):
            raise MissingInputError(
                f"input {value.name!r} has no column; pass columns={{{value.name!r}: COLUMN}}", name=value.name
            )
    return resolved_columns


def check_outputs(
    signature: Signature, outputs: Sequence[str] | None, passthrough_columns: Iterable[str]
) -> tuple[str, ...]:
    """Return the outputs that become columns. Raises InvalidInputError."""
    names = (outputs,) if isinstance(outputs, str) else outputs
    chosen = tuple(signature.check_outputs(names))
    for name in chosen:
        if name in passthrough_columns:
            raise InvalidInputError(
                f"output {name!r} would replace the column of that name; remove it from passthrough_columns, or "
                "rename it by dataset.rename_columns",
                name=name,
            )
    return chosen


def check_names(columns: Mapping[str, str], passthrough_columns: Iterable[str], names: Iterable[str]) -> None:
    """Check that all columns are among `names`. Raises InvalidInputError."""
    existing_columns = list(names)
    for name, column in (*columns.items(), *(("", column_name) for column_name in passthrough_columns)):
        if column not in existing_columns:
            use = f"for input {name!r} " if name else "of passthrough_columns "
            raise InvalidInputError(
                f"column {column!r} {use}is not in the dataset; {close_names(column, existing_columns)}",
                name=name or column,
            )


def check_types(signature: Signature, columns: Mapping[str, str], types: Mapping[str, ColumnType]) -> None:
    """Check known types of columns. Raises InputTypeError, InvalidInputError."""
    for name, column in columns.items():
        value, column_type = signature.by_name[name], types.get(column)
        if column_type is None:
            continue
        if column_type.dtype is not None:
            check_dtype(value, column, column_type.dtype)
        if column_type.shape is not None and value.shape is not None:
            check_row(value, column, column_type.shape)


def check_dtype(value: Value, column: str, dtype: str) -> None:
    """Check a column's data type. Raises InputTypeError."""
    if dtype != value.dtype:
        raise InputTypeError(
            f"column {column!r} contains {dtype}, but input {value.name!r} takes {value.dtype}; convert it first, with "
            f".astype({value.dtype!r}) in a separate map_batches",
            name=value.name,
        )


def check_row(value: Value, column: str, shape: tuple[int, ...]) -> bool:
    """Return True if the input takes stacked rows, False if it takes one row. Raises InvalidInputError."""
    declared = value.shape
    assert declared is not None, "asked only where the model says a shape"
    for is_batch, expected_shape in ((True, declared[1:]), (False, declared)):
        has_axis = len(declared) > 0 or not is_batch
        if has_axis and len(shape) == len(expected_shape) and all(
            size == want or not isinstance(want, int) for size, want in zip(shape, expected_shape, strict=True)
        ):  # fmt: skip
            return is_batch
    raise InvalidInputError(
        f"rows of column {column!r} have shape {list(shape)}, but input {value.name!r} is {list(declared)}: give rows "
        f"of shape {list(declared[1:])}, to be stacked, or of {list(declared)}, one per run",
        name=value.name,
    )


def types_of(schema: Any) -> dict[str, ColumnType]:
    """Return the column types in a Ray Data schema."""
    return {name: _type_of(kind) for name, kind in zip(schema.names, schema.types, strict=True)}


def _type_of(kind: Any) -> ColumnType:
    inner = getattr(kind, "scalar_type", kind)
    shape = getattr(kind, "shape", None) if inner is not kind else ()
    to_pandas = getattr(inner, "to_pandas_dtype", None)
    try:
        dtype = np.dtype(to_pandas()) if to_pandas is not None else np.dtype(inner)
    except (NotImplementedError, TypeError):
        return ColumnType(None, None)
    if dtype.kind == "O":  # text, lists, images: checked when read
        return ColumnType(None, None)
    sizes = None if shape is None or any(size is None for size in shape) else tuple(int(size) for size in shape)
    return ColumnType(dtype.name, sizes)


Run = Callable[[Mapping[str, Array], int], Sequence[Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Position of rows in a feed."""

    has_axis: bool
    """False if each row is an entire input."""
    most: int | None
    is_static: bool
    stripped: frozenset[str]
    """Outputs with an axis of rows."""


def axis_of(
    signature: Signature,
    outputs: Sequence[str],
    is_batch: Mapping[str, bool],
    compiled_rows: int | None,
    most: int | None = None,
) -> Axis:
    """Return the position of rows in a feed; `is_batch` has results of `check_row`. Raises InvalidInputError.

    Runs have `compiled_rows` rows if set, otherwise at most `most`.
    """
    if len(set(is_batch.values())) > 1:
        many = [name for name, batch in is_batch.items() if batch]
        single_row_inputs = [name for name, batch in is_batch.items() if not batch]
        raise InvalidInputError(
            f"rows of inputs {many} have no batch axis, but rows of {single_row_inputs} have one; remove it there"
        )
    if not any(is_batch.values()):
        return Axis(has_axis=False, most=1, is_static=True, stripped=frozenset())
    firsts = {_first(signature.by_name[name].shape) for name in is_batch}
    sizes = {size for size in firsts if isinstance(size, int)}
    if len(sizes) > 1:
        raise InvalidInputError(
            f"the first axes of inputs {list(is_batch)} have different sizes, {sorted(sizes)}, expected one batch size"
        )
    size = next(iter(sizes), None)
    declared = {value.name: _first(value.shape) for value in signature.outputs if value.name in outputs}
    along = {
        name for name, first in declared.items() if first == size or (first is not _NO_AXIS and type(first) is not int)
    }
    if len(along) < len(declared):
        return Axis(has_axis=True, most=1, is_static=True, stripped=frozenset(along))
    required_rows = compiled_rows if size is None else size
    return Axis(
        has_axis=True, most=required_rows or most, is_static=required_rows is not None, stripped=frozenset(along)
    )


_NO_AXIS = object()


def _first(shape: Sequence[int | str | None] | None) -> object:
    if shape is None:
        return None
    return shape[0] if len(shape) else _NO_AXIS


def checked_columns(signature: Signature, columns: Mapping[str, str], batch: Mapping[str, Any]) -> dict[str, Array]:
    """Return the array for each input from a batch. Raises InvalidInputError."""
    return {name: _checked(signature, name, column, batch[column]) for name, column in columns.items()}


def _checked(signature: Signature, name: str, column: str, values: Any) -> Array:
    array, value = np.asarray(values), signature.by_name[name]
    is_each = array.dtype.kind == "O" and value.dtype != "string"
    if is_each:
        _check_there(value, column, array)
    rows = [np.asarray(row) for row in array] if is_each else [array]
    for row in rows:
        check_dtype(value, column, "string" if row.dtype.kind in "OUST" else row.dtype.name)
    if value.dtype == "string":
        return array.astype(object)
    return _in_one(rows) if is_each else array


def _check_there(value: Value, column: str, rows: Array) -> None:
    for row, row_value in enumerate(rows):
        if row_value is None:
            raise InvalidInputError(
                f"column {column!r} contains None in row {row} of {len(rows)}, but input {value.name!r} takes "
                f"{value.dtype}; filter out such rows first",
                name=value.name,
            )


def _in_one(rows: Sequence[Array]) -> Array:
    if len({row.shape for row in rows}) == 1:
        return np.stack(rows)
    ragged_array = np.empty(len(rows), object)
    for position, row in enumerate(rows):  # if assigned at once, numpy might stack some
        ragged_array[position] = row
    return ragged_array


def row_shapes(array: Array) -> set[tuple[int, ...]]:
    """Return the shapes of a column's rows."""
    if _is_apart(array):
        return {row.shape for row in array}
    return {array.shape[1:]}


def _is_apart(array: Array) -> bool:
    return array.dtype.kind == "O" and len(array) > 0 and isinstance(array[0], np.ndarray)


def batches_of(signature: Signature, columns: Mapping[str, str], arrays: Mapping[str, Array]) -> dict[str, bool]:
    """Return for each input whether rows are stacked along its first axis. Raises InvalidInputError."""
    batch_flags: dict[str, bool] = {}
    for name, array in arrays.items():
        value = signature.by_name[name]
        for shape in row_shapes(array) if value.shape is not None else ():
            is_batch = check_row(value, columns[name], shape)
            if batch_flags.setdefault(name, is_batch) != is_batch:
                raise InvalidInputError(
                    f"some rows of column {columns[name]!r} have the batch axis of input {name!r} and others do not; "
                    "remove it from all rows",
                    name=name,
                )
        batch_flags.setdefault(name, True)
    return batch_flags


def run_rows(axis: Axis, arrays: Mapping[str, Array], outputs: Sequence[str], count: int, run: Run) -> dict[str, Array]:
    """Run rows, in several runs if necessary; return output -> rows, in order."""
    gathered_by_name = {name: _Gathered(count) for name in outputs}
    for rows in _chunks(axis, arrays, count):
        for name, result in zip(outputs, run(_feed(axis, arrays, rows), len(rows)), strict=True):
            gathered_by_name[name].put(rows, _output_rows(axis, name, result, len(rows)))
    return {name: gathered.concatenate() for name, gathered in gathered_by_name.items()}


def no_rows(signature: Signature, outputs: Sequence[str]) -> dict[str, Array]:
    """Return empty outputs, with 0 rows."""
    values = {value.name: value for value in signature.outputs}
    shapes = {name: values[name].shape or () for name in outputs}
    return {
        name: np.empty(
            (0, *(size if isinstance(size, int) else 0 for size in shapes[name][1:])),
            array_type_of(values[name].dtype or "float32"),
        )
        for name in outputs
    }


def _chunks(axis: Axis, arrays: Mapping[str, Array], count: int) -> Iterator[Sequence[int]]:
    groups: dict[object, list[int]] = {}
    ragged_arrays = [array for array in arrays.values() if _is_apart(array)]
    if ragged_arrays:
        for row in range(count):
            groups.setdefault(tuple(array[row].shape for array in ragged_arrays), []).append(row)
    for rows in groups.values() if ragged_arrays else (range(count),):
        most = axis.most or len(rows)
        yield from (rows[start : start + most] for start in range(0, len(rows), most))


def _feed(axis: Axis, arrays: Mapping[str, Array], rows: Sequence[int]) -> dict[str, Array]:
    if not axis.has_axis:
        return {name: np.asarray(array[rows[0]]) for name, array in arrays.items()}
    missing = (axis.most or 0) - len(rows) if axis.is_static else 0
    return {name: _pad_rows(_select_rows(array, rows), missing) for name, array in arrays.items()}


def _select_rows(array: Array, rows: Sequence[int]) -> Array:
    if _is_apart(array):
        return np.stack([array[row] for row in rows])
    return array[rows.start : rows.stop] if isinstance(rows, range) else array[list(rows)]


def _pad_rows(array: Array, missing: int) -> Array:
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing > 0 else array


def _output_rows(axis: Axis, name: str, result: Any, count: int) -> Array:
    array = np.asarray(result)
    if name not in axis.stripped:
        return array[None]
    row_count = len(array) if array.ndim else 0
    if row_count < count or (row_count > count and not axis.is_static):
        raise InvalidInputError(
            f"output {name!r} has shape {list(array.shape)} for {count} rows: it has no axis of rows; exclude it by "
            "outputs=[...]",
            name=name,
        )
    return array if row_count == count else array[:count]


class _Gathered:
    __slots__ = ("_array", "_count", "_rows")

    def __init__(self, count: int) -> None:
        self._count = count
        self._array: Array | None = None
        self._rows: list[Array] | None = None

    def put(self, rows: Sequence[int], part: Array) -> None:
        array = self._array
        if array is None:
            if isinstance(rows, range) and len(rows) == self._count:
                self._array = part  # all rows
                return
            array = self._array = np.empty((self._count, *part.shape[1:]), part.dtype)
        if self._rows is None and (part.shape[1:] != array.shape[1:] or part.dtype != array.dtype):
            self._rows = list(array)
        if self._rows is None:
            array[slice(rows.start, rows.stop) if isinstance(rows, range) else rows] = part
            return
        for row, value in zip(rows, part, strict=True):
            self._rows[row] = value

    def concatenate(self) -> Array:
        if self._rows is not None:
            return _in_one(self._rows)
        assert self._array is not None, "there is one row at least"
        return self._array


_USUAL_ROWS, _MOST_ROWS = 512, 8192
_USUAL_BYTES, _MOST_BYTES = 16 << 20, 32 << 20
_TASKS_PER_ACTOR = 16
_USUAL_SIZE = 256


def rows_at_once(
    signature: Signature, inputs: Iterable[str], outputs: Iterable[str], *, batch_size: int, rows: int | None,
    actors: int,
) -> int:  # fmt: skip
    """Return the rows per actor call, a multiple of `batch_size`; `rows` is the size of the dataset, if known."""
    outputs_by_name = {value.name: value for value in signature.outputs}
    fed = [signature.by_name[name] for name in inputs]
    fetched = [outputs_by_name[name] for name in outputs]
    size = max(_row_bytes(fed), _row_bytes(fetched), 1)
    most = min(_USUAL_ROWS, _USUAL_BYTES // size)
    if rows is not None and all(value.shape is not None for value in (*fed, *fetched)):
        most = max(most, min(_MOST_ROWS, _MOST_BYTES // size, rows // (actors * _TASKS_PER_ACTOR)))
    return batch_size * max(1, most // batch_size)


def known_rows(dataset: Any) -> int | None:
    """Return the number of rows in a dataset, if known to Ray."""
    tell = getattr(dataset, "_meta_count", None)  # the public `count` may compute
    rows = tell() if tell is not None else None
    return rows if isinstance(rows, int) else None


def _row_bytes(values: Sequence[Value]) -> int:
    return sum(
        prod(size if isinstance(size, int) else _USUAL_SIZE for size in (value.shape or ())[1:])
        * array_type_of(value.dtype or "float32").itemsize
        for value in values
    )
