"""What each device can take of a model: what converters say (stage 1), and what devices say of operations (stage 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnadapter.drivers.border import ask_supported
from nnadapter.drivers.capability import DeviceRole, ModelForm
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.interface import SegmentModel
from nnadapter.ir.model import Operation
from nnadapter.ir.operations.custom import CUSTOM
from nnadapter.offering.calling import calls_among, why_no_call, with_calls
from nnadapter.offering.model import ShapedModel
from nnadapter.onnx.references import inlined
from nnadapter.planning.setting import SessionDevice
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict, all_of

Verdicts = tuple[Verdict, ...]
"""One for every atom."""


@dataclass(frozen=True, eq=False, slots=True)
class Support:
    """The verdict of every device that was asked on every atom of a model."""

    verdicts: Mapping[str, Verdicts]
    """Devices in order of preference; a last resort that was not needed is left out. What was taken back later, by
    rules or because it did not work, is a refusal here."""
    on_host: Verdicts
    """What the host takes, whatever a person's rules say."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that were asked."""
        return tuple(self.verdicts)

    @property
    def is_complete(self) -> bool:
        """Every atom has a device."""
        return all(map(any, zip(*self.verdicts.values(), strict=True)))


def ask(device: SessionDevice, model: ShapedModel) -> Verdicts:
    """Return the verdict of a device on every atom; a driver that fails when asked has refused it.

    What a converter calls invalid is nothing for the last resort either, which computes something of almost any node.
    """
    conversion = model.conversion
    is_ir = device.capability.form is ModelForm.IR
    of_nodes = _ask_of_operations(device, model) if is_ir else _ask_of_nodes(device, model)
    if device.capability.role is DeviceRole.LAST_RESORT:
        of_nodes = list(map(_of_valid, of_nodes, conversion.verdicts))
    return tuple(
        of_nodes[atom[0]] if len(atom) == 1 else all_of(of_nodes[node] for node in atom) for atom in model.graph.atoms
    )


def refusals(device: SessionDevice, model: ShapedModel) -> tuple[tuple[Unsupported, ...], ...]:
    """Return every refusal of each node: that of its converter, or those of the operations that it became.

    What a converter refused became no operation, so what the device would say of it is not known.
    """
    conversion = model.conversion
    if device.capability.form is ModelForm.ONNX:
        verdicts_by_node = [[verdict] for verdict in _ask_of_nodes(device, model)]
    else:
        asked = _ask(device, conversion.model, len(conversion.model.operations))
        verdicts_by_node = [
            [first, *(asked[operation] for operation in operations)]
            for first, operations in zip(conversion.verdicts, conversion.operations, strict=True)
        ]
    return tuple(
        tuple(dict.fromkeys(verdict for verdict in of_node if isinstance(verdict, Unsupported)))
        for of_node in verdicts_by_node
    )


def _ask_of_operations(device: SessionDevice, model: ShapedModel) -> Sequence[Verdict]:
    conversion = model.conversion
    asked = _ask(device, conversion.model, len(conversion.model.operations))
    if CUSTOM in conversion.model.operation_types and not device.kernels.kernels:
        asked = [_of_domains(device, *pair) for pair in zip(asked, conversion.model.operations, strict=True)]
    if all(asked) and all(conversion.verdicts):
        return [SUPPORTED] * len(conversion.verdicts)
    return [
        first if isinstance(first, Unsupported) else all_of(asked[operation] for operation in operations)
        for first, operations in zip(conversion.verdicts, conversion.operations, strict=True)
    ]


def _of_domains(device: SessionDevice, verdict: Verdict, operation: Operation) -> Verdict:
    """The verdict, or a refusal of a node as it is, of a domain that the device does not declare."""
    domain = operation.attributes["domain"] if operation.type == CUSTOM else ""
    if operation.type != CUSTOM or domain in device.capability.domains:
        return verdict
    return Unsupported(Reason.UNSUPPORTED_DOMAIN, f"{device.display_name} does not declare the domain {domain!r}")


def _ask_of_nodes(device: SessionDevice, model: ShapedModel) -> Sequence[Verdict]:
    # What accelerates nothing judges operators by their names, so that the weights need not be copied for it.
    graph, kernels = model.graph, device.kernels
    nodes = range(len(graph.nodes))
    offered = model.parts.whole() if device.accelerates else model.parts.without_constants()
    offered = with_calls(offered, nodes, graph, calls_among(kernels, nodes, graph, model.conversion))
    verdicts = _ask(device, offered if device.capability.takes_references else inlined(offered), len(nodes))
    if not kernels.kernels:
        return verdicts
    whys = [
        None if verdict else why_no_call(kernels, node, graph, model.conversion)
        for node, verdict in enumerate(verdicts)
    ]
    return [verdict if why is None else why for verdict, why in zip(verdicts, whys, strict=True)]


def _ask(device: SessionDevice, model: SegmentModel, expected: int) -> Sequence[Verdict]:
    verdicts: Sequence[Verdict] = named_call(device.name, "supported")(ask_supported, device.context, model, expected)
    return verdicts


def _of_valid(verdict: Verdict, converted: Verdict) -> Verdict:
    invalid = isinstance(converted, Unsupported) and converted.reason is Reason.INVALID_NODE
    return converted if invalid else verdict
