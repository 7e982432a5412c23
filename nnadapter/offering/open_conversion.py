"""A model at one set of shapes, converted for all sizes, and its segments for devices that take adapter IR.

The nodes are those of a plan at some shapes. What follows from shapes alone, and was evaluated there, a segment is
given: single sizes and shapes as inputs, tables by operations that compute them again (`conversion_tracing`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nnadapter.ir.model import Model
from nnadapter.ir.operations.custom import CUSTOM
from nnadapter.offering.conversion_tracing import ConversionTracing
from nnadapter.offering.model import ShapedModel
from nnadapter.offering.part import Part
from nnadapter.offering.traced_conversions import DynamicConversion
from partition.plan import Step


def open_conversion(model: ShapedModel) -> DynamicConversion | None:
    """Return the model for all sizes, of the same atoms; None where some are known only for these shapes."""
    if CUSTOM in model.conversion.model.operation_types:
        return None  # kernels are bound to types
    specialized = model.specialized
    nodes_alone = replace(specialized, graph=replace(specialized.graph, atoms=()))
    tracing = ConversionTracing(model.prepared, model.shapes, nodes_alone, None, is_open=True)
    opened = tracing.opened(model.apart)
    return opened if opened is not None and opened.atoms == model.graph.atoms else None


def dynamic_ir_part(opening: DynamicConversion, step: Step, *, with_tables: bool = True) -> Part:
    """The operations of `step`, and what these read that follows from shapes alone.

    Args:
        opening: the model for all sizes.
        step: of a plan of it.
        with_tables: operations make tables, of sizes that are inputs; else the tables are inputs, too.
    """
    conversion = opening.conversion
    own = [operation for node in step.nodes for operation in conversion.operations[node]]
    operand_of, model = conversion.operand_of, conversion.model
    tables = opening.behind(_read(model, own)) if with_tables else ()
    operations = sorted({*own, *tables})
    read = _read(model, operations)
    inputs = [name for name in step.inputs if name in operand_of]
    inputs += [name for name in opening.given_sizes(read) if name not in inputs]
    if not with_tables:
        inputs += {operand: name for name, operand in opening.tables.items() if operand in read}.values()
    wanted = [operand_of[name] for name in step.outputs]
    part = conversion.part(operations, [operand_of[name] for name in inputs], wanted)
    return Part(part, tuple(inputs))


def _read(model: Model, operations: Iterable[int]) -> set[int]:
    return {operand for operation in operations for operand in model.operations[operation].inputs}
