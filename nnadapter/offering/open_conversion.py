"""A model at one set of shapes, converted for all sizes, and its segments for devices that take adapter IR.

The nodes are those of a plan at some shapes. What follows from shapes alone, and was evaluated there, a segment is
given: single sizes and shapes as inputs, tables by operations that compute them again (`conversion_tracing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nnadapter.ir.operations.custom import CUSTOM
from nnadapter.offering.conversion_tracing import ConversionTracing, OpenConversion
from nnadapter.offering.model import ShapedModel
from nnadapter.offering.segments import Part
from partition.plan import Step


def open_conversion(model: ShapedModel) -> OpenConversion | None:
    """Return the model for all sizes, of the same atoms; None where some are known only for these shapes."""
    if CUSTOM in model.conversion.model.operation_types:
        return None  # kernels are bound to types
    specialized = model.specialized
    nodes_alone = replace(specialized, graph=replace(specialized.graph, atoms=()))
    tracing = ConversionTracing(model.prepared, model.shapes, nodes_alone, None, is_open=True)
    opened = tracing.opened(model.apart)
    return opened if opened is not None and opened.atoms == model.graph.atoms else None


def open_ir_part(opening: OpenConversion, step: Step) -> Part:
    """The operations of `step`, those that make the tables they read, and the sizes that these read as inputs."""
    conversion = opening.conversion
    own = [operation for node in step.nodes for operation in conversion.operations[node]]
    operations = sorted({*own, *_tables(opening, own)})
    operand_of, model = conversion.operand_of, conversion.model
    read = {operand for operation in operations for operand in model.operations[operation].inputs}
    inputs = [name for name in step.inputs if name in operand_of]
    inputs += [name for name in opening.sizes if operand_of.get(name) in read and name not in inputs]
    wanted = [operand_of[name] for name in step.outputs]
    part = conversion.part(operations, [operand_of[name] for name in inputs], wanted)
    return Part(part, tuple(inputs))


def _tables(opening: OpenConversion, operations: Sequence[int]) -> Iterator[int]:
    """The operations behind some that make tables, as far back as they go."""
    model, tables = opening.conversion.model, opening.conversion.tables
    pending, seen = list(operations), set(operations)
    while pending:
        for operand in model.operations[pending.pop()].inputs:
            source = model.producer.get(operand)
            if source in tables and source not in seen:
                seen.add(source)
                pending.append(source)
                yield source
