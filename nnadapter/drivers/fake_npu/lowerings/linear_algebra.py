"""Lowerings of einsum and of products with packed weights."""

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

Labels = tuple[str, ...]
Groups = tuple[Labels, Labels, Labels, Labels]
"""Labels of a product of matrices: of the stack, of its rows, of the summed axis, of its columns."""


def lower_einsum(emitter: Emitter, operation: Operation) -> None:
    """Lower EINSUM: a matrix product if it is one, with its axes in order."""
    shapes = [emitter.model.operands[operand].type.dimensions for operand in operation.inputs]
    equation = read_equation(str(operation.attributes["equation"]), list(map(len, shapes)))
    sizes, groups = label_sizes(equation, shapes), _groups(equation)
    pairs = (pair for term, shape in zip(equation.terms, shapes, strict=True) for pair in zip(term, shape, strict=True))
    broadcasts = any(sizes[label] != size for label, size in pairs)
    if groups is not None and not broadcasts:
        _lower_to_product(emitter, operation, equation, sizes, groups)
        return
    letters = dict(zip(equation.labels, ascii_letters, strict=False))
    *factors, result = ("".join(letters[label] for label in term) for term in (*equation.terms, equation.result))
    emitter.emit_operation(operation, "einsum", {"equation": f"{','.join(factors)}->{result}"})


def _groups(equation: Equation) -> Groups | None:
    """Return an equation as a product of matrices; None if it is not one."""
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
    x, transpose_x = _matrices(emitter, operation.inputs[0], equation.terms[0], (stack, rows, summed), sizes)
    y, transpose_y = _matrices(emitter, operation.inputs[1], equation.terms[1], (stack, summed, columns), sizes)
    dtype = emitter.result_type(operation.outputs[0]).dtype
    matrices = TensorType(dtype, _dimensions((stack, rows, columns), sizes))
    parameters = {"transpose_x": transpose_x, "transpose_y": transpose_y}
    (product,) = emitter.emit("matmul", (x, y), (matrices,), parameters)
    labels = (*stack, *rows, *columns)
    separate = emitter.view(product, [sizes[label] for label in labels])
    perm = [labels.index(label) for label in equation.result]
    emitter.assign(operation.outputs[0], emitter.transpose(separate, perm))


def _matrices(
    emitter: Emitter, operand: int, term: Labels, groups: tuple[Labels, Labels, Labels], sizes: dict[str, int]
) -> tuple[int, bool]:
    """Return a factor as a stack of matrices, and whether these lie there transposed."""
    tensor, (stack, first, second) = emitter.tensor(operand), groups
    if term == (*stack, *second, *first) and first and second:
        return emitter.view(tensor, _dimensions((stack, second, first), sizes)), True
    ordered = [term.index(label) for group in groups for label in group]
    return emitter.view(emitter.transpose(tensor, ordered), _dimensions(groups, sizes)), False


def _dimensions(groups: Sequence[Labels], sizes: dict[str, int]) -> tuple[int, ...]:
    """Return one axis per group; an empty stack has none."""
    stack, *others = groups
    return tuple(prod(sizes[label] for label in group) for group in ([stack] if stack else []) + others)


def lower_mat_mul_n_bits(emitter: Emitter, operation: Operation) -> None:
    """Lower MAT_MUL_N_BITS: a product with the weight as reals, computed once if the operands are constant."""
    x, *packed, bias = (*operation.inputs, *[ABSENT] * (5 - len(operation.inputs)))
    types, present = emitter.model.operands, [operand for operand in packed if operand != ABSENT]
    depth = types[x].type.dimensions[-1]
    parameters = {"bits": operation.attributes["bits"], "block_size": operation.attributes["block_size"]}
    if all(map(emitter.is_constant, present)):
        arrays = [None if operand == ABSENT else emitter.constant(operand) for operand in packed]
        weight = emitter.add_constant(derived(unpacked_weight, *arrays, depth=depth, **parameters))
    else:
        result = TensorType(emitter.result_type(packed[1]).dtype, (types[packed[0]].type.dimensions[0], depth))
        inputs = list(map(emitter.tensor, present))
        (weight,) = emitter.emit("unpack_weight", inputs, (result,), {"depth": depth, **parameters})
    biases = [] if bias == ABSENT else [emitter.tensor(bias)]
    emitter.emit_operation(operation, "fully_connected", inputs=[emitter.tensor(x), weight, *biases])
