"""Workarounds for wrong fusions of norms, activations and attention; `workarounds.py` describes each.

Fusions that the engine computes correctly remain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module
from nnadapter.drivers.openvino.graph import (
    Operators,
    data_of,
    element_type,
    insert,
    is_constant,
    kind_of,
    opaque,
    part,
    parted,
    readers_of,
    replace,
    replace_operator,
    upstream,
)
from nnadapter.drivers.openvino.operators import name_set

_ARITHMETIC = name_set("Add Divide FloorMod Maximum Minimum Mod Multiply PRelu Power SquaredDifference Subtract")
_ELEMENTWISE = _ARITHMETIC | name_set(
    "Abs Ceiling Clamp Convert Elu Erf Exp Floor Gelu HSigmoid HSwish HardSigmoid Identity Log Mish Negative Relu "
    "Round Selu Sigmoid Sign SoftPlus SoftSign Sqrt Swish Tanh"
)
_CHAINED = _ELEMENTWISE | name_set(
    "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Equal Greater GreaterEqual IsFinite IsInf IsNaN Less LessEqual "
    "LogicalAnd LogicalNot LogicalOr LogicalXor NotEqual Select Sin Sinh Tan"
)
_CHANNELS = 1
_FOLLOWED = _ELEMENTWISE | name_set("Broadcast Concat Pad Reshape Slice Squeeze StridedSlice Tile Transpose Unsqueeze")
_REWRITTEN = name_set("Divide Subtract")
_LONGEST_WALK = 100
_HALVING = name_set("Slice Split StridedSlice VariadicSplit")
_LONGEST_CHAIN = 100
"""Length up to which chains of elementwise operators compile in linear time."""
DIVIDED_CHAINS = "long chains are divided"
_SIZES = name_set("i64 u64")


def replace_cast(convert: Any) -> None:
    """Remove a Convert to the data type of its input."""
    source, result = convert.input_value(0), convert.output(0)
    if source.get_element_type() != result.get_element_type():
        return
    if _is_read_by(result, "Result"):
        replace(result, opaque(source))
    else:
        for reader in result.get_target_inputs():
            reader.replace_source_output(source)


def broadcast_before_constants(operators: Operators) -> None:
    """Broadcast an operand explicitly to the shape of a larger constant."""
    constants = set[str]()
    for kind, operator in operators:
        sources = [source.get_node().get_name() for source in operator.input_values()]
        if kind == "Constant" or (sources and constants.issuperset(sources)):
            constants.add(operator.get_name())
        elif kind in _ARITHMETIC and len(sources) == 2:
            _broadcast_operand(operator, constants)


def _broadcast_operand(operator: Any, constants: set[str]) -> None:
    if element_type(operator.output(0)) in _SIZES:
        return
    for port, other in (operator.inputs(), operator.inputs()[::-1]):
        source = other.get_source_output()
        if source.get_node().get_name() in constants and source.get_partial_shape().is_static:
            shape = source.get_shape()
            value = port.get_source_output()
            if _enlarges(shape, value.get_partial_shape()):
                operators = module().opset13
                target = operators.constant(np.array(shape, np.int64))
                larger = operators.broadcast(value, target, broadcast_spec="BIDIRECTIONAL")
                port.replace_source_output(opaque(larger.output(0)))


def _enlarges(constant: Any, shape: Any) -> bool:
    if shape.rank.is_dynamic:
        return len(constant) > 0
    sizes = list(shape)
    if len(constant) > len(sizes):
        return True
    pairs = zip(reversed(constant), reversed(sizes), strict=False)
    return any(size > 1 and (other.is_dynamic or other.get_length() != size) for size, other in pairs)


def separate_reduction(reduction: Any) -> None:
    """Prevent the engine from fusing elementwise operators with a preceding reduction that drops dimensions."""
    if not reduction.get_attributes().get("keep_dims", True) and _reaches_elementwise(reduction.output(0)):
        insert(reduction.output(0))


def _reaches_elementwise(value: Any) -> bool:
    pending, count = [value], 0
    while pending:
        for node in readers_of(pending.pop()):
            count += 1
            if node.get_type_name() in _ELEMENTWISE or count > _LONGEST_WALK:
                return True
            if node.get_type_name() in _FOLLOWED:
                pending.append(node.output(0))
    return False


def separate_gates(product: Any) -> None:
    """Prevent the engine from fusing attention with elementwise operators on its result and another operand.

    A Split is inserted after the other operand or, if that has more dimensions, after the result.
    """
    if any(True for _ in _weights(product)):
        for port in list(_gates(product)):
            part(port, opaque)


def _weights(product: Any) -> Iterator[Any]:
    nodes = upstream(product.input_value(0).get_node(), _FOLLOWED, _LONGEST_WALK)
    return (node for node in nodes if node.get_type_name() == "Softmax")


def _gates(product: Any) -> Iterator[Any]:
    ports, is_shared = [], False
    pending, visited = [product.output(0)], set[str]()
    while pending:
        value = pending.pop()
        readers = value.get_target_inputs()
        is_shared |= len(readers) > 1 or len(visited) > _LONGEST_WALK
        for reader in readers:
            node = reader.get_node()
            kind, name = node.get_type_name(), node.get_name()
            if kind in _ELEMENTWISE:
                sibling_inputs = [port for port in node.inputs() if port.get_index() != reader.get_index()]
                siblings = [port.get_source_output() for port in sibling_inputs]
                is_rewritten = kind in _REWRITTEN and not all(map(is_constant, siblings))
                computed = [port for port in sibling_inputs if _is_computed(port.get_source_output())]
                ports += [reader] if is_rewritten else computed
                if node.get_output_partial_shape(0).rank != value.get_partial_shape().rank:
                    yield reader
            if kind in _FOLLOWED and name not in visited and len(visited) <= _LONGEST_WALK:
                visited.add(name)
                pending.append(node.output(0))
    if is_shared:
        yield from ports


def _is_computed(value: Any) -> bool:
    """Check whether the engine computes a value. Parameters count as computed unless their type is float32."""
    if kind_of(value) == "Parameter":
        return element_type(value) != "f32"
    return kind_of(value) not in {"Constant", "VariadicSplit"}


def separate_weights(product: Any) -> None:
    """Prevent the fusion of Softmax and MatMul (attention weights and values) of different ranks."""
    ranks = {str(source.get_partial_shape().rank) for source in product.input_values()}
    if any({str(softmax.get_output_partial_shape(0).rank)} != ranks for softmax in _weights(product)):
        part(product.input(0), opaque)


def multiply_by_number(product: Any) -> None:
    """Replace a matrix product with a constant of one element by an elementwise multiplication."""
    matrix, number = product.input_values()
    is_number = is_constant(number) and tuple(number.get_shape()) == (1, 1)
    if is_number and not product.get_attributes()["transpose_a"] and matrix.get_partial_shape().rank == 2:
        replace_operator(product, module().opset13.multiply(matrix, number))


def separate_slope(product: Any) -> None:
    """Prevent the fusion of a Relu with a multiplication by a vector if the vector is not per channel."""
    for port, other in (product.inputs(), product.inputs()[::-1]):
        vector, shape = other.get_partial_shape(), port.get_partial_shape()
        if vector.rank == 1 and (shape.rank.is_dynamic or len(shape) > _CHANNELS + 1):
            may_be_channels = shape.rank.is_dynamic or shape[_CHANNELS].compatible(vector[0])
            if may_be_channels and vector[0] != 1 and _is_rectified(port.get_source_output().get_node()):
                part(port, opaque)


def _is_rectified(node: Any) -> bool:
    kind, sources = node.get_type_name(), set(map(kind_of, node.input_values()))
    if kind in {"Negative", "Multiply"}:
        return "Relu" in sources
    return kind == "Relu" or (kind == "Subtract" and "Abs" in sources)


def separate_rotation(concat: Any) -> None:
    """Prevent the fusion of a rotary embedding that ends at `concat` and differs from the engine's pattern."""
    if concat.get_input_size() == 2 and _is_odd_rotation(concat):
        insert(concat.output(0))


def _is_odd_rotation(concat: Any) -> bool:
    halves = [source.get_node() for source in concat.input_values()]
    are_negated = [_negated(half) is not None for half in halves]
    if not any(are_negated):
        return False
    negated = _negated(halves[0])
    if are_negated != [True, False] or (negated is not None and _is_first(negated)):
        return True
    shape = concat.get_output_partial_shape(0)
    return any(not _has_width(table, shape) for table in _tables(concat.output(0)))


def _negated(node: Any) -> Any:
    kind = node.get_type_name()
    if kind == "Negative":
        return node.input_value(0)
    if kind == "Multiply":
        computed = [source for source in node.input_values() if not is_constant(source)]
        if len(computed) == 1 and kind_of(computed[0]) in _HALVING:
            return computed[0]
    return None


def _is_first(half: Any) -> bool:
    node = half.get_node()
    if node.get_type_name() in {"Split", "VariadicSplit"}:
        return bool(half.get_index() == 0)
    return node.get_type_name() in _HALVING and _is_zero(node.input_value(1))


def _is_zero(value: Any) -> bool:
    contents = data_of(value)
    return contents is not None and not contents.any()


def _tables(rotated: Any) -> Iterator[Any]:
    for product in readers_of(rotated):
        if product.get_type_name() == "Multiply":
            yield from product.input_values()
            for total in readers_of(product.output(0)):
                for value in total.input_values() if total.get_type_name() in {"Add", "Subtract"} else ():
                    if kind_of(value) == "Multiply":
                        yield from value.get_node().input_values()


def _has_width(value: Any, shape: Any) -> bool:
    table = value.get_partial_shape()
    if table.rank.is_dynamic or shape.rank.is_dynamic:
        return True
    return len(table) > 0 and bool(table[len(table) - 1].compatible(shape[len(shape) - 1]))


def separate_factor(sigmoid: Any) -> None:
    """Prevent the fusion of a Sigmoid with a multiplication of its input by a computed number."""
    source = sigmoid.input_value(0)
    factors = source.get_node().input_values() if kind_of(source) == "Multiply" else []
    if any(_is_number(factor) and not is_constant(factor) for factor in factors):
        part(sigmoid.input(0), opaque)


def _is_number(value: Any) -> bool:
    shape = value.get_partial_shape()
    return not shape.rank.is_dynamic and len(shape) > 0 and all(size == 1 for size in shape)


def separate_scales(operators: Operators) -> None:
    """Prevent the engine from moving quantization scales through norms and multidimensional Gathers."""
    if all(kind != "FakeQuantize" for kind, _ in operators):
        return
    values = [value for kind, operator in operators for value in _scaled(kind, operator)]
    for value in {(value.get_node().get_name(), value.get_index()): value for value in values}.values():
        if kind_of(value) != "Parameter" and value.get_element_type().is_real():
            insert(value, parted)  # scales move through a Split


def _scaled(kind: str, operator: Any) -> Iterator[Any]:
    is_mean = kind == "ReduceMean" and _is_read_by(operator.input_value(0), "Subtract")
    if is_mean or kind in {"GroupNormalization", "MVN", "NormalizeL2"}:
        yield operator.input_value(0)
    elif kind == "Gather":
        values, indices, axis = operator.input_values()
        shape = indices.get_partial_shape()
        if not _is_zero(axis) and (shape.rank.is_dynamic or len(shape) > 1):
            yield values
    elif kind == "ReduceSum":
        power = operator.input_value(0).get_node()
        if power.get_type_name() in {"Multiply", "Power"} and _is_read_by(power.input_value(0), "Divide"):
            yield power.input_value(0)


def _is_read_by(value: Any, kind: str) -> bool:
    return any(reader.get_type_name() == kind for reader in readers_of(value))


def divide_chains(operators: Operators) -> str | None:
    """Divide long elementwise chains, which compile in cubic time; return a note about inserted operators, or None."""
    if len(operators) <= _LONGEST_CHAIN:
        return None
    lengths: dict[str, int] = {}
    steps = 0
    for kind, operator in operators:
        if kind in _CHAINED:
            length = 1 + max(lengths.get(source.get_node().get_name(), 0) for source in operator.input_values())
            if length >= _LONGEST_CHAIN and _takes_long(kind, operator):
                insert(operator.output(0))
                length, steps = 0, steps + 1
            lengths[operator.get_name()] = length
    if not steps:
        return None
    return (
        f"{DIVIDED_CHAINS}: OpenVINO's compile time grows with the cube of the number of elementwise operators in a "
        f"row, so {steps} steps that change nothing are inserted, one after every {_LONGEST_CHAIN} of them"
    )


def _takes_long(kind: str, operator: Any) -> bool:
    return kind.startswith("Logical") or bool(operator.get_output_element_type(0).is_real())
