"""Repair of Paddle models: rewritten structures before conversion, and corrected output of paddle2onnx."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from math import ceil, inf, pi, prod, sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nnadapter.onnx.files import load_model

if TYPE_CHECKING:
    import onnx


_DIALECT = "1."
"""Prefix of the names of Paddle's operations. Containers, control flow and parameters have other prefixes."""
_NOT_CONVERTED = frozenset({"data", "feed", "fetch", "shadow_output", "if", "while", "has_elements", "select_input"})
"""Inputs, outputs and control flow, which `operations_of` omits."""
_DRAWING = frozenset({"bernoulli", "dropout", "gaussian", "multinomial", "poisson", "randint", "uniform"})
_OLD_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "add": "elementwise_add",
        "all": "reduce_all",
        "any": "reduce_any",
        "arange": "range",
        "argmax": "arg_max",
        "argmin": "arg_min",
        "divide": "elementwise_div",
        "expand": "expand_v2",
        "flatten": "flatten_contiguous_range",
        "floor_divide": "elementwise_floordiv",
        "grid_sample": "grid_sampler",
        "hardsigmoid": "hard_sigmoid",
        "hardswish": "hard_swish",
        "matmul": "matmul_v2",
        "max": "reduce_max",
        "maximum": "elementwise_max",
        "mean": "reduce_mean",
        "min": "reduce_min",
        "minimum": "elementwise_min",
        "multiply": "elementwise_mul",
        "nonzero": "where_index",
        "prod": "reduce_prod",
        "remainder": "elementwise_mod",
        "subtract": "elementwise_sub",
        "topk": "top_k_v2",
        "unsqueeze": "unsqueeze2",
    }
)
"""Operation in Paddle 3 -> its name in the converter's list, if that differs."""


def unsupported_in(operations: Collection[str], listed: Collection[str]) -> list[str]:
    """Return the sorted names of operations that are not in a converter's list."""
    return sorted(name for name in operations if not _is_listed(name.removesuffix("_"), listed))


def _is_listed(name: str, listed: Collection[str]) -> bool:
    return not {name, f"{name}_", _OLD_NAMES.get(name, name)}.isdisjoint(listed)


def operations_of(program: Any) -> frozenset[str]:
    """Return the names of Paddle's operations in a program and its nested graphs."""
    named = (str(operation["#"]) for operation in walked(program))
    names = (name.removeprefix(_DIALECT) for name in named if name.startswith(_DIALECT))
    return frozenset(names) - _NOT_CONVERTED


def walked(program: Any) -> Iterator[Any]:
    """Yield every operation of a program and its nested graphs."""
    for block in _blocks(program["regions"]):
        yield from block["ops"]


def _blocks(regions: Sequence[Any]) -> Iterator[Any]:
    for region in regions:
        for block in region["blocks"]:
            yield block
            for operation in block["ops"]:
                yield from _blocks(operation.get("regions", ()))


def draws_numbers(program: Any) -> bool:
    """Return True if a program draws random numbers. Dropout draws them only in training."""
    drawing = (operation for operation in walked(program) if str(operation["#"]).removeprefix(_DIALECT) in _DRAWING)
    return not all(map(_is_test, drawing))


def _is_test(operation: Any) -> bool:
    return any(attribute["N"] == "is_test" and attribute["AT"]["D"] is True for attribute in operation["A"])


_DTYPES: Mapping[str, str] = MappingProxyType({"0.t_f16": "float16", "0.t_f32": "float32", "0.t_f64": "float64"})
_CUBE, _FACTOR = 0.044715, 2 * sqrt(2 / pi)
_LINEAR = 20.0
"""Default threshold of softplus, above which it equals its input."""
_CHANNELS_FIRST: Mapping[str, str] = MappingProxyType({"NDHWC": "NCDHW", "NHWC": "NCHW", "NLC": "NCL", "NWC": "NCW"})
_LAYOUTS_TAKEN = frozenset({"1.pad3d"})
"""Operations that the converter accepts with channels last."""
_TENSOR = "0.t_dtensor"
_INTEGER_ARRAY = "1.full_int_array"
"""Operation for constant integers, which the converter finds only in the outermost block."""
_NO_VALUE = 0


def expand(program: Any) -> bool:
    """Replace operations that the converter lacks or gets wrong, in place; return True if any was replaced."""
    values, is_changed = _Values(program), False
    for block in _blocks(program["regions"]):
        operations: list[Any] = []
        for operation in block["ops"]:
            for current_operation in _with_channels_first(operation, values):
                expansion = _EXPANSIONS.get(current_operation["#"])
                writer = _Writer(current_operation, values)
                is_expanded = expansion is not None and expansion(writer)
                operations += writer.operations if is_expanded else [current_operation]
                is_changed |= is_expanded or current_operation is not operation
        block["ops"] = operations
    return is_changed


def _numbers(program: Any) -> Iterator[int]:
    pending = [program]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if isinstance(item.get("%"), int):
                yield item["%"]
            pending += item.values()
        elif isinstance(item, list):
            pending += item


class _Values:
    def __init__(self, program: Any) -> None:
        self.last = max(map(abs, _numbers(program)), default=0)
        self.types: dict[int, Any] = {}
        self.integers: dict[int, list[int]] = {}
        for operation in walked(program):
            results = operation.get("O", ())
            for result in [results] if isinstance(results, dict) else results:
                if "TT" in result:
                    self.types[result["%"]] = result["TT"]
                if operation["#"] == _INTEGER_ARRAY:
                    self.integers[result["%"]] = _attributes(operation)["value"]

    def shape(self, number: int) -> list[int] | None:
        """Return the shape of a tensor, with -1 for unknown sizes; None for other values."""
        type_ = self.types.get(number)
        return type_["D"][1] if type_ is not None and type_["#"] == _TENSOR else None


class _Writer:
    """Writer of the operations that replace a single one. New values get the next unused numbers."""

    def __init__(self, operation: Any, values: _Values) -> None:
        self.operation, self.values = operation, values
        self.operations: list[Any] = []

    @property
    def input(self) -> Any:
        return self.operation["I"][0]

    @property
    def output(self) -> Any:
        return self.operation["O"][0]

    @property
    def attributes(self) -> dict[str, Any]:
        return _attributes(self.operation)

    @property
    def dtype(self) -> str | None:
        type_ = self.output["TT"]
        return _DTYPES.get(type_["D"][0]["#"]) if type_["#"] == _TENSOR else None

    def constant(self, number: float, shape: Sequence[int] = (1,)) -> Any:
        attributes = [
            _attribute("shape", "1.a_intarray", list(shape)),
            _attribute("value", "0.a_f64", number),
            _attribute("dtype", "1.a_dtype", self.dtype),
            _attribute("place", "1.a_place", [1, 0, ""]),
        ]
        return self.write("1.full", [], attributes, shape=shape)

    def vector(self, numbers: Sequence[int]) -> Any:
        attributes = [
            _attribute("value", "0.a_array", [{"#": "0.a_i64", "D": number} for number in numbers]),
            _attribute("dtype", "1.a_dtype", "int64"),
            _attribute("place", "1.a_place", [1, 0, ""]),
        ]
        return self.write(_INTEGER_ARRAY, [], attributes, shape=[len(numbers)], dtype="0.t_i64")

    def scaled(self, value: Any, factor: float, bias: float = 0.0, *, output: Any = None) -> Any:
        attributes = [_attribute("bias", "0.a_f32", bias), _attribute("bias_after_scale", "0.a_bool", True)]
        return self.write("1.scale", [value, self.constant(factor)], attributes, output=output)

    def write(
        self,
        kind: str,
        inputs: Sequence[Any],
        attributes: Sequence[Any] = (),
        *,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        output: Any = None,
    ) -> Any:
        if output is None:
            type_ = deepcopy(self.output["TT"])
            if shape is not None:
                type_["D"][1] = list(shape)
            if dtype is not None:
                type_["D"][0] = {"#": dtype}
            self.values.last += 1
            output = {"%": self.values.last, "TT": type_}
            self.values.types[output["%"]] = type_
        stopped = [{"AT": {"#": "0.a_array", "D": [{"#": "0.a_bool", "D": False}]}, "N": "stop_gradient"}]
        reads = [{"%": value["%"]} for value in inputs]
        self.operations.append({"#": kind, "A": list(attributes), "I": reads, "O": [output], "OA": stopped})
        return output

    def rewrite(self, inputs: Mapping[int, Any], **attributes: object) -> None:
        operation = deepcopy(self.operation)
        for position, value in inputs.items():
            operation["I"][position] = {"%": value["%"]}
        for attribute in operation["A"]:
            if attribute["N"] in attributes:
                attribute["AT"] = attributes[attribute["N"]]
        self.operations.append(operation)


def _attribute(name: str, kind: str, value: object) -> dict[str, object]:
    return {"AT": {"#": kind, "D": value}, "N": name}


def _attributes(operation: Any) -> dict[str, Any]:
    return {
        attribute["N"]: _number(attribute["AT"]) for attribute in operation.get("A", ()) if isinstance(attribute, dict)
    }


def _number(value: Any) -> Any:
    if "VD" in value:
        return float(value["VD"])
    content = value.get("D")
    return [_number(element) for element in content] if value["#"] == "0.a_array" else content


def _sizes(values: Sequence[int]) -> Any:
    return {"#": "0.a_array", "D": [{"#": "0.a_i32", "D": size} for size in values]}


def _with_channels_first(operation: Any, values: _Values) -> list[Any]:
    layout, inputs = _attributes(operation).get("data_format"), operation.get("I")
    shape = values.shape(inputs[0]["%"]) if inputs else None
    if layout is None or layout not in _CHANNELS_FIRST or operation["#"] in _LAYOUTS_TAKEN or shape is None:
        return [operation]
    last = len(shape) - 1
    channels_first_perm, channels_last_perm = [0, last, *range(1, last)], [0, *range(2, last + 1), 1]
    writer, output = _Writer(operation, values), operation["O"][0]
    x = writer.write(
        "1.transpose",
        [writer.input],
        [{"N": "perm", "AT": _sizes(channels_first_perm)}],
        shape=[shape[axis] for axis in channels_first_perm],
    )
    inner = deepcopy(operation)
    inner["I"][0] = {"%": x["%"]}
    for attribute in inner["A"]:
        if attribute["N"] == "data_format":
            attribute["AT"]["D"] = _CHANNELS_FIRST[layout]
    values.last += 1
    type_ = deepcopy(output["TT"])
    type_["D"][1] = [type_["D"][1][axis] for axis in channels_first_perm]
    inner["O"][0] = {"%": values.last, "TT": type_}
    values.types[values.last] = type_
    writer.operations.append(inner)
    writer.write("1.transpose", [inner["O"][0]], [{"N": "perm", "AT": _sizes(channels_last_perm)}], output=output)
    return writer.operations


def _gelu(writer: _Writer) -> bool:
    """Expand GELU with the tanh approximation, which the converter would write as exact GELU."""
    if writer.attributes.get("approximate") is not True or writer.dtype is None:
        return False
    x = writer.input
    square = writer.write("1.multiply", [x, x])
    inner = writer.write("1.multiply", [x, writer.scaled(square, _CUBE, 1.0)])
    gate = writer.write("1.sigmoid", [writer.scaled(inner, _FACTOR)])
    writer.write("1.multiply", [x, gate], output=writer.output)
    return True


def _hardtanh(writer: _Writer) -> bool:
    """Replace hardtanh by a clip to its bounds; the converter always clips to -1 and 1."""
    low, high = writer.attributes["t_min"], writer.attributes["t_max"]
    if (low, high) == (-1.0, 1.0) or writer.dtype is None:
        return False
    bounds = [writer.constant(low), writer.constant(high)]
    writer.write("1.clip", [writer.input, *bounds], output=writer.output)
    return True


def _softplus(writer: _Writer) -> bool:
    """Expand Paddle's softplus: log(1 + exp(beta x)) / beta, or x if beta x is above the threshold."""
    beta, threshold = writer.attributes["beta"], writer.attributes["threshold"]
    if beta == 0 or (beta, threshold) == (1.0, _LINEAR) or writer.dtype is None:
        return False
    x, is_bounded = writer.input, threshold < _LINEAR
    product = writer.scaled(x, beta)
    attributes = [_attribute("beta", "0.a_f32", 1.0), _attribute("threshold", "0.a_f32", _LINEAR)]
    soft = writer.write("1.softplus", [product], attributes)
    result = writer.scaled(soft, 1 / beta, output=None if is_bounded else writer.output)
    if is_bounded:
        condition = writer.write("1.greater_than", [product, writer.constant(threshold)], dtype="0.t_bool")
        writer.write("1.where", [condition, x, result], output=writer.output)
    return True


def _thresholded_relu(writer: _Writer) -> bool:
    """Expand a ReLU with a result other than 0 below the threshold; the converter ignores that result."""
    threshold, number = writer.attributes["threshold"], writer.attributes.get("value", 0.0)
    if number == 0 or writer.dtype is None:
        return False
    x = writer.input
    condition = writer.write("1.greater_than", [x, writer.constant(threshold)], dtype="0.t_bool")
    like = [_attribute("dtype", "1.a_dtype", writer.dtype), _attribute("place", "1.a_place", [0, 0, ""])]
    other = writer.write("1.full_like", [x, writer.constant(number)], like)
    writer.write("1.where", [condition, x, other], output=writer.output)
    return True


def _round(writer: _Writer) -> bool:
    """Expand rounding to a number of decimals; the converter rounds to integers."""
    decimals = writer.attributes.get("decimals", 0)
    if decimals == 0 or writer.dtype is None:
        return False
    power = 10.0**decimals
    rounded = writer.write("1.round", [writer.scaled(writer.input, power)], [_attribute("decimals", "0.a_i32", 0)])
    writer.write("1.divide", [rounded, writer.constant(power)], output=writer.output)
    return True


def _layer_norm(writer: _Writer) -> bool:
    """Reshape scale and shift, which are vectors in Paddle, to the shape of the normalized dimensions."""
    first, shape = writer.attributes["begin_norm_axis"], writer.values.shape(writer.input["%"])
    sizes = shape[first:] if shape is not None else []
    _, scale, shift = writer.operation["I"]
    is_plain = scale["%"] == shift["%"] == _NO_VALUE
    if len(sizes) < 2 or min(sizes) < 0 or is_plain or writer.dtype is None:
        return False
    parameters = {}
    for position, value in enumerate((scale, shift), 1):
        if value["%"] != _NO_VALUE:
            dtype = writer.values.types[value["%"]]["D"][0]["#"]
            target = writer.vector(sizes)
            parameters[position] = writer.write("1.reshape", [value, target], shape=sizes, dtype=dtype)
        elif position == 1:
            parameters[position] = writer.constant(1.0, sizes)
    writer.rewrite(parameters)
    return True


def _mean(writer: _Writer) -> bool:
    """List the axes of a mean over all axes; otherwise the converter crashes."""
    shape, axes = writer.values.shape(writer.input["%"]), writer.operation["I"][1]["%"]
    if not shape or writer.values.integers.get(axes) != []:
        return False
    writer.rewrite({1: writer.vector(range(len(shape)))})
    return True


def _norm(writer: _Writer) -> bool:
    """Expand norms of infinite order; flatten the input of norms over all elements."""
    attributes = writer.attributes
    order, axis, is_flat = attributes["porder"], attributes["axis"], attributes.get("asvector", False)
    shape = writer.values.shape(writer.input["%"])
    if not shape or writer.dtype is None or (attributes["keepdim"] if is_flat else abs(order) != inf):
        return False
    x = writer.input
    if is_flat:
        axis, shape = 0, [-1 if min(shape) < 0 else prod(shape)]
        x = writer.write("1.reshape", [x, writer.vector([-1])], shape=shape)
    if abs(order) != inf:
        writer.rewrite({0: x}, asvector={"#": "0.a_bool", "D": False}, axis={"#": "0.a_i32", "D": axis})
        return True
    magnitudes = writer.write("1.abs", [x], shape=shape)
    keep = [_attribute("keepdim", "0.a_bool", attributes["keepdim"])]
    kind = "1.max" if order > 0 else "1.min"
    writer.write(kind, [magnitudes, writer.vector([axis])], keep, output=writer.output)
    return True


def _convolution(writer: _Writer) -> bool:
    attributes = writer.attributes
    if attributes["padding_algorithm"] != "SAME" or set(attributes["dilations"]) == {1}:
        return False
    writer.rewrite({}, dilations=_sizes([1] * len(attributes["dilations"])))
    return True


def _transposed_convolution(writer: _Writer) -> bool:
    """Convert an output size to output padding, and SAME padding to numbers."""
    attributes, inputs = writer.attributes, writer.operation["I"]
    shape, filters = writer.values.shape(writer.input["%"]), writer.values.shape(inputs[1]["%"])
    target = writer.values.integers.get(inputs[2]["%"]) if len(inputs) > 2 else attributes.get("output_size")
    strides, pads, dilations = attributes["strides"], attributes["paddings"], attributes["dilations"]
    if shape is None or filters is None:
        return False
    kernel = filters[2:]
    is_same = attributes["padding_algorithm"] == "SAME"
    if is_same:
        dilations = [1] * len(kernel)
        sizes = [1 if stride == 1 else size for size, stride in zip(shape[2:], strides, strict=True)]
        if min(sizes) < 0:
            return False
        steps = zip(sizes, strides, kernel, strict=True)
        sums = [max((ceil(size / stride) - 1) * stride + width - size, 0) for size, stride, width in steps]
        pads = [pad for total_pad in sums for pad in (total_pad // 2, total_pad - total_pad // 2)]
    elif attributes["padding_algorithm"] == "VALID":
        pads = [0] * len(kernel)
    changes: dict[str, object] = {}
    if is_same:
        explicit = {"#": "0.a_str", "D": "EXPLICIT"}
        changes = {"padding_algorithm": explicit, "paddings": _sizes(pads), "dilations": _sizes(dilations)}
    if target:
        sums = [
            sum(pads[2 * at : 2 * at + 2]) if len(pads) > len(kernel) else 2 * pads[at] for at in range(len(kernel))
        ]
        spans = [dilation * (width - 1) + 1 for dilation, width in zip(dilations, kernel, strict=True)]
        rows = zip(target, sums, spans, strides, strict=True)
        changes["output_padding"] = _sizes([(size + pad - span) % stride for size, pad, span, stride in rows])
    writer.rewrite({}, **changes)
    return bool(changes)


_EXPANSIONS: Mapping[str, Callable[[_Writer], bool]] = MappingProxyType(
    {
        "1.conv2d": _convolution,
        "1.conv2d_transpose": _transposed_convolution,
        "1.conv3d": _convolution,
        "1.conv3d_transpose": _transposed_convolution,
        "1.depthwise_conv2d": _convolution,
        "1.depthwise_conv2d_transpose": _transposed_convolution,
        "1.gelu": _gelu,
        "1.hardtanh": _hardtanh,
        "1.layer_norm": _layer_norm,
        "1.mean": _mean,
        "1.p_norm": _norm,
        "1.round": _round,
        "1.softplus": _softplus,
        "1.thresholded_relu": _thresholded_relu,
    }
)
"""Operation -> function that writes its expansion, or returns False if none is needed."""


_REALS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "1.bicubic_interp": ("scale",),
        "1.bilinear_interp": ("scale",),
        "1.group_norm": ("epsilon",),
        "1.leaky_relu": ("negative_slope",),
        "1.linear_interp": ("scale",),
        "1.nearest_interp": ("scale",),
        "1.pad3d": ("pad_value",),
        "1.softplus": ("beta", "threshold"),
        "1.trilinear_interp": ("scale",),
    }
)
"""Operation -> attributes that Paddle writes as doubles and the converter reads as floats only."""
_DOUBLE, _FLOAT = "0.a_f64", "0.a_f32"


def rewrite(program: Any) -> bool:
    """Rewrite a program in place for the converter; return True if anything changed.

    Doubles become floats. Constant axes and shapes move out of loops and branches. Operations with unsupported
    attributes are expanded.
    """
    changed = expand(program)
    for operation in walked(program):
        for attribute in operation.get("A", ()):
            if isinstance(attribute, dict) and attribute.get("N") in _REALS.get(operation["#"], ()):
                changed |= _narrowed(attribute["AT"])
    for region in program["regions"]:
        for block in region["blocks"]:
            changed |= _hoisted(block)
    return changed


def _narrowed(value: Any) -> bool:
    values = value["D"] if value["#"] == "0.a_array" else [value]
    wide = [element for element in values if element["#"] == _DOUBLE]
    for wide_value in wide:
        wide_value["#"] = _FLOAT
    return bool(wide)


def _hoisted(block: Any) -> bool:
    operations: list[Any] = []
    for operation in block["ops"]:
        for inner in list(_blocks(operation.get("regions", ()))):
            operations += (nested for nested in inner["ops"] if nested["#"] == _INTEGER_ARRAY)
            inner["ops"] = [nested for nested in inner["ops"] if nested["#"] != _INTEGER_ARRAY]
        operations.append(operation)
    is_changed = len(operations) != len(block["ops"])
    block["ops"] = operations
    return is_changed


_OPERATIONS = ("1.quantize_linear", "1.dequantize_linear")
_INTEGERS = {"bit_length": (8,), "qmin": (-128, -127), "qmax": (127,)}
"""Attribute of quantizing operations -> values that mean 8-bit integers."""
_FLOATS = {"qmin": -448, "qmax": 448}
"""Attribute values that mean float8e4m3fn to the converter."""
_FLOAT8, _INT8 = 17, 3
_DIVISORS = {"QuantizeLinear": 448.0, "DequantizeLinear": 112.0}
"""Op type -> number by which the converter divides the largest value to get the scale."""


def mark(program: Any) -> int:
    """Mark 8-bit quantizing operations as float8, which the converter supports. Return their number."""
    operations = [item for item in walked(program) if item["#"] in _OPERATIONS]
    for operation in operations:
        attributes = {attribute["N"]: attribute["AT"] for attribute in operation["A"]}
        for name, allowed_values in _INTEGERS.items():
            value = attributes[name]["D"]
            if value not in allowed_values:
                raise ValueError(
                    f"a {operation['#'].removeprefix('1.')} has {name} {value}, expected {allowed_values[0]}"
                )
        for name, value in _FLOATS.items():
            attributes[name]["D"] = value
    return len(operations)


def restore(model: onnx.ModelProto, count: int) -> None:
    """Turn the nodes that `mark` marked as float8 back to int8. Raises ValueError for an unknown form."""
    made_by = {name: node for node in model.graph.node for name in node.output}
    quantizing = [node for node in model.graph.node if node.op_type in _DIVISORS]
    if len(quantizing) != count:
        raise ValueError(f"the converter wrote {len(quantizing)} quantizing nodes for {count} quantizing operations")
    for node in quantizing:
        division = made_by[_checked_producer(made_by, node.input[1], "Div")]
        _rescale(made_by[_checked_producer(made_by, division.input[1], "Constant")], _DIVISORS[node.op_type])
        _retype(made_by[_checked_producer(made_by, node.input[2], "Cast")])
        if node.op_type == "DequantizeLinear":
            cast = made_by[_checked_producer(made_by, node.input[0], "Cast")]
            _retype(cast)
            producer = made_by.get(cast.input[0])
            if producer is not None and producer.op_type == "Cast" and producer.input[0] in made_by:
                source = made_by[producer.input[0]]
                if source.op_type == "QuantizeLinear":  # integers, as floats, as integers
                    node.input[0] = source.output[0]
            _unbind(model, node.output[0])


def unrounded(model: onnx.ModelProto) -> None:
    """Remove quantization followed by dequantization, which Paddle's predictor skips on the CPU."""
    made_by = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        source = made_by.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if source is not None and source.op_type == "QuantizeLinear":
            node.op_type = "Identity"
            node.input[0] = source.input[0]
            del node.input[1:], node.attribute[:]


def _checked_producer(made_by: Mapping[str, Any], name: str, op_type: str) -> str:
    if name not in made_by or made_by[name].op_type != op_type:
        raise ValueError(f"value {name!r} of a quantizing node has no producer of type {op_type}")
    return name


def _rescale(constant: Any, divisor: float) -> None:
    (attribute,) = constant.attribute
    if attribute.t.raw_data != struct.pack("<f", divisor):
        raise ValueError("a scale of a quantizing node has an unexpected divisor")
    attribute.t.raw_data = struct.pack("<f", _INTEGERS["qmax"][0])


def _retype(cast: Any) -> None:
    (to,) = cast.attribute
    if to.i != _FLOAT8:
        raise ValueError(f"a Cast of a quantizing node is to type {to.i}, expected {_FLOAT8}")
    to.i = _INT8


def _unbind(model: onnx.ModelProto, name: str) -> None:
    for op_type in ("Max", "Min"):
        bounds = [node for node in model.graph.node if node.op_type == op_type and node.input[0] == name]
        if len(bounds) != 1:
            raise ValueError(f"{len(bounds)} nodes of type {op_type} follow a DequantizeLinear, expected 1")
        (bound,) = bounds
        bound.op_type = "Identity"
        del bound.input[1:]
        name = bound.output[0]


_INT64 = 7
"""Source: onnx.TensorProto.INT64."""


def repair_model(contents: bytes, outputs: Sequence[str], quantizing: int = 0) -> bytes:
    """Rename outputs of a converted model, restore int8, reshape outputs to rank 0, and drop unused nodes.

    Args:
        contents: the ONNX model.
        outputs: Paddle's output names; empty if the model has them already.
        quantizing: number of quantizing operations.

    Raises:
        InvalidModelError: `contents` are not a model.
        ValueError: the converter wrote an unknown form.
    """
    model = load_model(contents)
    named = dict(zip((output.name for output in model.graph.output), outputs, strict=False))
    for node in model.graph.node:
        for position, name in enumerate(node.output):
            node.output[position] = named.get(name, name)
        for position, name in enumerate(node.input):
            node.input[position] = named.get(name, name)
    for value in model.graph.output:
        value.name = named.get(value.name, value.name)
    if quantizing:
        restore(model, quantizing)
    _without_dimensions(model.graph)
    _drop_unread(model.graph)
    return _contents(model)


def without_rounding(contents: bytes) -> bytes:
    """Return a model without quantization, as Paddle's predictor runs it on the CPU."""
    model = load_model(contents)
    unrounded(model)
    _drop_unread(model.graph)
    return _contents(model)


def _without_dimensions(graph: onnx.GraphProto) -> None:
    """Reshape vectors of one element to outputs of declared rank 0. Nodes still read the vectors."""
    for value in graph.output:
        made_at = next((at for at, node in enumerate(graph.node) if value.name in node.output), None)
        kind = value.type.tensor_type
        if made_at is None or not kind.HasField("shape") or kind.shape.dim:
            continue
        elements, shape = f"{value.name}.elements", f"{value.name}.shape"
        for node in graph.node:
            node.output[:] = [elements if name == value.name else name for name in node.output]
            node.input[:] = [elements if name == value.name else name for name in node.input]
        graph.initializer.add(name=shape, dims=[0], data_type=_INT64)
        added = graph.node.add(op_type="Reshape", input=[elements, shape], output=[value.name])
        graph.node.insert(made_at + 1, added)
        del graph.node[-1]


def _drop_unread(graph: onnx.GraphProto) -> None:
    read, nodes = {value.name for value in graph.output}, list[object]()
    for node in reversed(graph.node):
        if not read.isdisjoint(node.output):
            read.update(_read_by(node))
            nodes.append(node)
    initializers = [initializer for initializer in graph.initializer if initializer.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(nodes))
    graph.initializer.extend(initializers)


def _read_by(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _read_by(inner)


def _contents(model: onnx.ModelProto) -> bytes:
    contents: bytes = model.SerializeToString()
    return contents
