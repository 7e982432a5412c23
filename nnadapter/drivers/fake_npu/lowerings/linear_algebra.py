"""Lowerings of small linear algebra."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from string import ascii_letters

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.ir.deferred_arrays import unpacked_weight
from nnadapter.ir.derived import derived
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operations.equation import Equation, label_sizes, read_equation


def lower_einsum(emitter: Emitter, operation: Operation) -> None:
    """EINSUM: a matrix product where it is one, with what brings its axes in order."""
    shapes = [emitter.model.operands[operand].type.dimensions for operand in operation.inputs]
    equation = read_equation(str(operation.attributes["equation"]), list(map(len, shapes)))
    sizes = label_sizes(equation, shapes)
    groups = _groups(equation)
    spreads = any(
        sizes[label] != size
        for term, shape in zip(equation.terms, shapes, strict=True)
        for label, size in zip(term, shape, strict=True)
    )
    if groups is None or spreads:
        _lower_directly(emitter, operation, equation)
    else:
        _lower_to_product(emitter, operation, equation, sizes, groups)


Groups = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Labels of a product of matrices: of the stack, of its rows, of what is summed over, of its columns."""


def _groups(equation: Equation) -> Groups | None:
    """How an equation is a product of matrices; None if it is not."""
    if len(equation.terms) != 2 or any(len(set(term)) < len(term) for term in equation.terms):
        return None
    x, y = equation.terms
    shared, kept = [label for label in x if label in y], set(equation.result)
    if set(equation.labels) - set(shared) - kept:  # one factor alone is summed over
        return None
    return (
        tuple(label for label in shared if label in kept),
        tuple(label for label in x if label not in y),
        tuple(label for label in shared if label not in kept),
        tuple(label for label in y if label not in x),
    )


def _lower_to_product(
    emitter: Emitter, operation: Operation, equation: Equation, sizes: dict[str, int], groups: Groups
) -> None:
    stack, rows, summed, columns = groups
    (x, transpose_x), (y, transpose_y) = (
        _matrices(emitter, emitter.tensor(operand), term, side, sizes)
        for operand, term, side in zip(
            operation.inputs, equation.terms, ((stack, rows, summed), (stack, summed, columns)), strict=True
        )
    )
    result = emitter.result_type(operation.outputs[0])
    matrices = TensorType(result.dtype, _dimensions((stack, rows, columns), sizes))
    parameters = {"transpose_x": transpose_x, "transpose_y": transpose_y}
    (product,) = emitter.emit("matmul", (x, y), (matrices,), parameters)
    made = (*stack, *rows, *columns)
    apart = emitter.view(product, [sizes[label] for label in made])
    emitter.assign(operation.outputs[0], emitter.transpose(apart, [made.index(label) for label in equation.result]))


def _matrices(
    emitter: Emitter, tensor: int, term: tuple[str, ...], groups: Sequence[tuple[str, ...]], sizes: dict[str, int]
) -> tuple[int, bool]:
    """A factor as a stack of matrices, and whether these lie there transposed."""
    stack, first, second = groups
    if term == (*stack, *second, *first) and first and second:
        return emitter.view(tensor, _dimensions((stack, second, first), sizes)), True
    ordered = [term.index(label) for group in groups for label in group]
    return emitter.view(emitter.transpose(tensor, ordered), _dimensions(groups, sizes)), False


def _dimensions(groups: Sequence[tuple[str, ...]], sizes: dict[str, int]) -> tuple[int, ...]:
    """One axis per group; a stack of nothing is none."""
    stack, *others = groups
    return tuple(prod(sizes[label] for label in group) for group in ([stack] if stack else []) + others)


def _lower_directly(emitter: Emitter, operation: Operation, equation: Equation) -> None:
    letters = dict(zip(equation.labels, ascii_letters, strict=False))
    terms = ("".join(letters[label] for label in term) for term in (*equation.terms, equation.result))
    *factors, result = terms
    emitter.emit_operation(operation, "einsum", {"equation": f"{','.join(factors)}->{result}"})


def lower_mat_mul_n_bits(emitter: Emitter, operation: Operation) -> None:
    """MAT_MUL_N_BITS: a product with the weight as reals, which are made once where the packed ones are constant."""
    x, *packed, bias = (*operation.inputs, *[ABSENT] * (5 - len(operation.inputs)))
    types = emitter.model.operands
    depth = types[x].type.dimensions[-1]
    parameters = {"bits": operation.attributes["bits"], "block_size": operation.attributes["block_size"]}
    present = [operand for operand in packed if operand != ABSENT]
    if all(map(emitter.is_constant, present)):
        arrays = [None if operand == ABSENT else emitter.constant(operand) for operand in packed]
        weight = emitter.add_constant(derived(unpacked_weight, *arrays, depth=depth, **parameters))
    else:
        result = TensorType(emitter.result_type(packed[1]).dtype, (types[packed[0]].type.dimensions[0], depth))
        inputs = list(map(emitter.tensor, present))
        (weight,) = emitter.emit("unpack_weight", inputs, (result,), {"depth": depth, **parameters})
    biases = [] if bias == ABSENT else [emitter.tensor(bias)]
    emitter.emit_operation(operation, "fully_connected", inputs=[emitter.tensor(x), weight, *biases])
