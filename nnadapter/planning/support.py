"""Verdicts: what the converters say of a graph (stage 1), and what each device says of it (stage 2)."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.converters.convert import Conversion
from nnadapter.drivers.border import ask_supported
from nnadapter.drivers.capability import ModelForm
from nnadapter.drivers.selection import HOSTS, REFERENCE
from nnadapter.offering.segments import OnnxParts
from nnadapter.planning.targets import Target
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict, all_of


def judge(target: Target, conversion: Conversion, parts: OnnxParts) -> tuple[Verdict, ...]:
    """Return the verdict of `target` on every atom of the graph; a driver that fails when asked has refused it.

    What a converter calls invalid is nothing for the last resort either, which computes something of almost any node.
    """
    of_nodes = _judge_ir(target, conversion) if target.capability.form is ModelForm.IR else _judge_onnx(target, parts)
    if target.name == REFERENCE:
        of_nodes = list(map(_of_valid, of_nodes, conversion.verdicts))
    return tuple(
        of_nodes[atom[0]] if len(atom) == 1 else all_of(of_nodes[node] for node in atom) for atom in parts.graph.atoms
    )


def _judge_ir(target: Target, conversion: Conversion) -> Sequence[Verdict]:
    asked = ask_supported(target.context, conversion.model, len(conversion.model.operations))
    if all(asked) and all(conversion.verdicts):
        return [SUPPORTED] * len(conversion.verdicts)
    return [
        first if isinstance(first, Unsupported) else all_of(asked[operation] for operation in operations)
        for first, operations in zip(conversion.verdicts, conversion.operations, strict=True)
    ]


def refusals(target: Target, conversion: Conversion, parts: OnnxParts) -> tuple[tuple[Unsupported, ...], ...]:
    """Return every refusal of each node: that of its converter, or those of the operations that it became.

    What a converter refused became no operation, so what the device would say of it is not known.
    """
    if target.capability.form is ModelForm.ONNX:
        given = [[verdict] for verdict in _judge_onnx(target, parts)]
    else:
        asked = ask_supported(target.context, conversion.model, len(conversion.model.operations))
        given = [
            [first, *(asked[operation] for operation in operations)]
            for first, operations in zip(conversion.verdicts, conversion.operations, strict=True)
        ]
    return tuple(
        tuple(dict.fromkeys(verdict for verdict in of_node if isinstance(verdict, Unsupported))) for of_node in given
    )


def _judge_onnx(target: Target, parts: OnnxParts) -> Sequence[Verdict]:
    # The host's own devices judge operators by their names, so that the weights need not be copied for them.
    model = parts.without_constants() if target.name in HOSTS else parts.whole()
    return ask_supported(target.context, model, len(parts.graph.nodes))


def _of_valid(verdict: Verdict, converted: Verdict) -> Verdict:
    invalid = isinstance(converted, Unsupported) and converted.reason is Reason.INVALID_NODE
    return converted if invalid else verdict
