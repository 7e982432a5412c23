"""Model signature in ONNX Runtime's terms, and checks of feeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.errors import FAILURES, InputTypeError, InvalidInputError, MissingInputError
from nnadapter.ir.operand import Array, array_type_of
from nnadapter.records import dataclass
from partition.graph import Value

if TYPE_CHECKING:
    import onnx


Shapes = Mapping[str, tuple[int, ...]]

_NO_VERSION = (1 << 63) - 1
"""ONNX Runtime's value for models without version."""
_TYPE_NAMES = {
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e5m2": "float8e5m2",
}


class FedTensor:
    """Base of inputs of a run that are not arrays, such as device-resident tensors."""

    __slots__ = ("__weakref__", "dtype", "shape")

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeArg:
    """Model input or output. Source: onnxruntime.NodeArg."""

    name: str
    shape: list[int | str | None]
    """Sizes, names, or None for unnamed dynamic dimensions."""
    type: str
    """Such as `tensor(float)`."""


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Model metadata. Source: onnxruntime.ModelMetadata."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True, eq=False)
class Signature:
    """Inputs, outputs and metadata of a model."""

    inputs: tuple[Value, ...]
    """Inputs that must be fed."""
    overridable: tuple[Value, ...]
    """Inputs that may be fed: initializers that are also inputs."""
    outputs: tuple[Value, ...]
    metadata: ModelMetadata

    @cached_property
    def by_name(self) -> Mapping[str, Value]:
        return {value.name: value for value in (*self.inputs, *self.overridable)}

    @cached_property
    def _required(self) -> frozenset[str]:
        return frozenset(value.name for value in self.inputs if not (value.dtype or "").startswith("optional"))

    @cached_property
    def _optional(self) -> Sequence[str]:
        return [value.name for value in self.inputs if value.name not in self._required]

    @cached_property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """Numpy types of inputs, except strings, sequences and other types without one."""
        numeric = {name: value.dtype for name, value in self.by_name.items() if value.dtype != "string"}
        return {name: array_type_of(dtype) for name, dtype in numeric.items() if dtype is not None and "(" not in dtype}

    @cached_property
    def _forms(self) -> Mapping[str, tuple[np.dtype[Any], int, Sequence[tuple[int, int]]]]:
        return {
            name: (dtype, len(shape), [(axis, size) for axis, size in enumerate(shape) if type(size) is int])
            for name, dtype in self.dtypes.items()
            if (shape := self.by_name[name].shape) is not None
        }

    @cached_property
    def _declared(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]] | None:
        """Ranks, positions of static sizes in concatenated shapes, and these sizes; None if a rank is not declared."""
        shapes = [value.shape for value in self.by_name.values()]
        declared_shapes = [shape for shape in shapes if shape is not None]
        if len(declared_shapes) < len(shapes):
            return None
        static_sizes = [
            (place, size) for place, size in enumerate(chain.from_iterable(declared_shapes)) if type(size) is int
        ]
        return list(map(len, declared_shapes)), [place for place, _ in static_sizes], [size for _, size in static_sizes]

    def declares(self, shapes: Shapes) -> bool:
        """Return whether these are valid shapes of all inputs; False if a rank is not declared."""
        fed_shapes: list[Any] = list(map(shapes.get, self.by_name))
        if self._declared is None or None in fed_shapes:
            return False
        ranks, places, declared = self._declared
        if list(map(len, fed_shapes)) != ranks:
            return False
        sizes = tuple(chain.from_iterable(fed_shapes))
        return [sizes[place] for place in places] == declared

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.outputs)

    def check_feed(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the feed as arrays of declared types and shapes; sequences and optionals are not checked.

        Raises:
            MissingInputError: a required input is missing.
            InputTypeError: wrong data type.
            InvalidInputError: unknown input, or wrong shape.
        """
        if not isinstance(feed, Mapping):
            raise InvalidInputError(f"the feed is a {type(feed).__name__}, expected a dictionary, input name -> array")
        if not self._required <= feed.keys():
            missing = [value.name for value in self.inputs if value.name in self._required and value.name not in feed]
            raise MissingInputError.of(missing, feed, [value.name for value in self.inputs])
        checked = {
            name: fed_value if self._fits(name, fed_value) else self._check_one(name, fed_value)
            for name, fed_value in feed.items()
        }
        return dict.fromkeys(self._optional) | checked if self._optional else checked

    def _fits(self, name: str, fed_value: Any) -> bool:
        form = self._forms.get(name)
        if form is None or not (type(fed_value) is np.ndarray or isinstance(fed_value, FedTensor)):
            return False
        dtype, rank, declared = form
        shape = fed_value.shape
        if fed_value.dtype != dtype or len(shape) != rank:
            return False
        for axis, size in declared:  # noqa: SIM110  faster than all()
            if shape[axis] != size:
                return False
        return True

    def check_outputs(self, names: Sequence[str] | None) -> Sequence[str]:
        """Return names of outputs to fetch, by default all. Raises InvalidInputError."""
        if names is None:
            return self.output_names
        if not isinstance(names, Collection) or isinstance(names, str):
            raise InvalidInputError(f"outputs are {names!r}, expected a list of names, or None for all of them")
        if len(names) == 0:
            return self.output_names
        for name in names:
            if name not in self.output_names:
                raise InvalidInputError(
                    f"Invalid output name: {name!r}; the model's outputs are {list(self.output_names)}", name=name
                )
        return names

    def _check_one(self, name: str, fed_value: Any) -> Any:
        value = self.by_name.get(name)
        if value is None:
            raise InvalidInputError(
                f"Invalid input name: {name!r}; the model's inputs are {list(self.by_name)}", name=name
            )
        if value.dtype is None or "(" in value.dtype:
            return fed_value
        array = _as_array(name, fed_value, value)
        _check_dtype(array, value)
        _check_shape(array, value)
        return plain(array) if isinstance(array, np.ndarray) else array


def plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a plain array in native byte order: subclasses may compute differently."""
    is_plain = type(array) is np.ndarray and array.dtype.isnative
    return array if is_plain else np.asarray(array, array.dtype.newbyteorder("="))


def read_signature(model: onnx.ModelProto, inputs: Sequence[str], defaults: frozenset[str]) -> Signature:
    """Return the signature of `model`. `inputs` excludes constants; `defaults` are inputs with an initializer."""
    from nnadapter.onnx.graphs import value_of

    inputs_by_name = {value.name: value_of(value) for value in model.graph.input}
    return Signature(
        inputs=tuple(inputs_by_name[name] for name in inputs if name not in defaults),
        overridable=tuple(inputs_by_name[name] for name in inputs if name in defaults),
        outputs=tuple(value_of(value) for value in model.graph.output),
        metadata=ModelMetadata(
            producer_name=model.producer_name,
            graph_name=model.graph.name,
            domain=model.domain,
            description=model.doc_string,
            graph_description=model.graph.doc_string,
            version=model.model_version if model.HasField("model_version") else _NO_VERSION,
            custom_metadata_map={entry.key: entry.value for entry in model.metadata_props},
        ),
    )


def node_arg(value: Value) -> NodeArg:
    """Return a value's description in ONNX Runtime's terms."""
    return NodeArg(value.name, list(value.shape or ()), type_name(value.dtype))


def type_name(dtype: str | None) -> str:
    """Return ONNX Runtime's type name, such as `tensor(float)` or `seq(tensor(int64))`."""
    if dtype is None:
        return ""
    head, _, inner = dtype.partition("(")
    if not inner:
        return f"tensor({_TYPE_NAMES.get(dtype, dtype)})"
    if head == "map":
        key, _, item = inner[:-1].partition(", ")
        return f"map({key},{type_name(item)})"
    wrapped = {"sequence": "seq", "sparse": "sparse_tensor"}.get(head, head)
    if wrapped == "sparse_tensor":
        return f"{wrapped}({_TYPE_NAMES.get(inner[:-1], inner[:-1])})"
    return f"{wrapped}({type_name(inner[:-1])})"


def _as_array(name: str, fed_value: Any, value: Value) -> np.ndarray[Any, Any] | FedTensor:
    if isinstance(fed_value, np.ndarray) and fed_value.dtype.kind in "SV" and value.dtype == "string":
        return texts_of(name, fed_value)
    if isinstance(fed_value, (np.ndarray, FedTensor)):
        return fed_value
    dtype = None if value.dtype == "string" or hasattr(fed_value, "dtype") else np.dtype(value.dtype)
    try:
        if hasattr(fed_value, "numpy") and hasattr(fed_value, "data_type"):  # onnxruntime.OrtValue
            return np.asarray(fed_value.numpy())
        return np.asarray(fed_value) if dtype is None else np.asarray(fed_value, dtype)
    except FAILURES as error:  # raised by foreign methods that numpy calls
        raise InputTypeError(
            f"input {name!r} takes an array of {value.dtype}, got {type(fed_value).__name__}; pass a numpy array",
            name=name,
        ) from error


def texts_of(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Decode bytes (numpy kinds S and V) to strings; V keeps trailing zeros. Raises InvalidInputError if not UTF-8."""
    decoded = np.frompyfunc(_decoded, 1, 1)
    try:
        return np.asarray(decoded(array), object)
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"input {name!r} takes strings, but {error.object[:40]!r} of the array of bytes is not UTF-8: "
            f"{error.reason}; decode the array first",
            name=name,
        ) from error


def _decoded(element: Any) -> str:
    return bytes(element).decode()


def _check_dtype(array: np.ndarray[Any, Any] | FedTensor, value: Value) -> None:
    got = "string" if array.dtype.kind in "OU" else array.dtype.name
    if got != value.dtype:
        dtype = "str" if value.dtype == "string" else repr(value.dtype)
        raise InputTypeError(
            f"Unexpected input data type for {value.name!r}: got {got}, expected {value.dtype}; "
            f"convert it with .astype({dtype})",
            name=value.name,
        )


def _check_shape(array: np.ndarray[Any, Any] | FedTensor, value: Value) -> None:
    declared = value.shape
    if declared is None:
        return
    if not _fits(array.shape, declared):
        raise InvalidInputError(
            f"input {value.name!r} has shape {list(array.shape)}, expected {list(declared)}{_names(declared)}; "
            "reshape the input",
            name=value.name,
        )


def _fits(shape: tuple[int, ...], declared: Sequence[int | str | None]) -> bool:
    if len(shape) != len(declared):
        return False
    return all(got == want or type(want) is not int for got, want in zip(shape, declared, strict=True))


def _names(declared: Sequence[int | str | None]) -> str:
    return "" if all(isinstance(dimension, int) for dimension in declared) else " (a name or None is any size)"


def read_shapes(input_shapes: object) -> list[dict[str, tuple[int, ...]]]:
    """Return one or several sets of input shapes as a list, or raise InvalidInputError."""
    several = [input_shapes] if isinstance(input_shapes, Mapping) else input_shapes
    try:
        return [{name: tuple(map(index, shape)) for name, shape in shapes.items()} for shapes in several]  # type: ignore[attr-defined]
    except (TypeError, AttributeError):
        raise InvalidInputError(
            f"input shapes are {input_shapes!r}, expected whole numbers by input, such as {{'x': (1, 3, 224, 224)}}, "
            "or a list of such dictionaries"
        ) from None


Number = bool | int | float


def filled(value: Value, number: Number, shape: tuple[int, ...] | None) -> Array:
    """Return an array of an input's type filled with a number; booleans only for `bool`.

    Raises:
        InvalidInputError: not numeric, dynamic shape, or not representable.
    """
    if value.dtype is None or value.dtype == "string" or "(" in value.dtype:
        raise InvalidInputError(
            f"input {value.name!r} is {value.dtype or 'of no type'}, which a number cannot fill; give an array",
            name=value.name,
        )
    if shape is None:
        raise InvalidInputError(
            f"input {value.name!r} has dynamic sizes, so a number cannot fill it; give an array", name=value.name
        )
    dtype = np.dtype(value.dtype)
    try:
        with np.errstate(all="ignore"):
            array = np.full(shape, number, dtype)
    except (OverflowError, ValueError, TypeError):
        fits = False
    else:
        is_truth = dtype.kind == "b"
        fits = isinstance(number, bool) == is_truth or (is_truth and number in (0, 1))
        fits = fits and (dtype.kind not in "iu" or not array.size or array.flat[0] == number)
    if not fits:
        raise InvalidInputError(f"input {value.name!r} takes {value.dtype}, got {number}", name=value.name)
    return array
