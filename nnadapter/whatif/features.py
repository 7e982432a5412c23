"""Refusals as features: what a device, or our converters, would have to learn for an atom to be taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from nnadapter.drivers.capability import ModelForm
from nnadapter.onnx.domains import op_name
from nnadapter.onnx.preparation.prepare import Specialized
from nnadapter.planning.judgment import Judgment
from nnadapter.planning.setting import SessionDevice
from nnadapter.planning.support import refusals
from partition.graph import Graph, Value
from partition.verdict import SUPPORTED, Reason, Unsupported


class Where(StrEnum):
    """Where something has to be added."""

    DEVICE = "device"
    """The device refused an operation that it was offered."""
    CONVERTER = "converter"
    """nnadapter has no way to offer it to devices that take its operations."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Feature:
    """What must be added for a set of refused nodes."""

    reason: str
    """A code of `partition.Reason`."""
    op_type: str
    """With its domain where that is not ONNX's own; empty where the reason is about whole segments."""
    what: str = ""
    """The data type, rank, attribute or version, in words; empty where the op alone says it."""
    where: Where = Where.DEVICE

    @property
    def label(self) -> str:
        """The feature in a few words: `Erf`, `Pow of float64`, `Expand of rank 2 -> 7`."""
        return _LABELS.get(Reason(self.reason), "{op} {what}").format(op=self.op_type, what=self.what).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A refused node that needs a feature."""

    node: str
    detail: str
    """The refusal in words."""


Needs = tuple[frozenset[Feature] | None, ...]
"""Per atom, what has to be added for the device to take it; empty where it takes it, None where nothing would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What one device lacks for one graph."""

    needs: Needs
    examples: Mapping[Feature, Example]
    """The first node of each."""


def missing_features(judgment: Judgment, target: SessionDevice) -> Missing:
    """Return what `target` lacks for the atoms that it refuses.

    1. An atom of several nodes, and a node that became several operations, needs all that was refused of it.
    2. Of one operation a device names one reason; what hides behind it is not seen.
    3. What a person's rules forbid, and a node that contradicts itself, needs nothing that a device could learn.
    """
    model = judgment.model
    graph, verdicts = model.graph, judgment.support.verdicts[target.name]
    refusals_by_node = refusals(target, model)
    forbidden = _forbidden(judgment, target.name)
    by_converter = target.capability.form is ModelForm.IR
    needs: list[frozenset[Feature] | None] = []
    examples: dict[Feature, Example] = {}
    for atom, (nodes, verdict) in enumerate(zip(graph.atoms, verdicts, strict=True)):
        node_refusals = (
            () if verdict else tuple((node, refusal) for node in nodes for refusal in refusals_by_node[node])
        )
        if isinstance(verdict, Unsupported) and all(refusal != verdict for _, refusal in node_refusals):
            node_refusals = ((nodes[0], verdict),)  # not the device's first word: a segment with this atom failed later
        if forbidden[atom] or any(refusal.reason in _NO_FEATURE for _, refusal in node_refusals):
            needs.append(None)
            continue
        atom_features = {}
        for node, refusal in node_refusals:
            where = by_converter and refusal == model.conversion.verdicts[node]
            feature = _feature(model.specialized, node, refusal, Where.CONVERTER if where else Where.DEVICE)
            atom_features[feature] = Example(node=graph.nodes[node].name, detail=refusal.detail)
        for feature, example in atom_features.items():
            examples.setdefault(feature, example)
        needs.append(frozenset(atom_features))
    return Missing(needs=tuple(needs), examples=examples)


def _forbidden(judgment: Judgment, device: str) -> Sequence[bool]:
    """Per atom, whether rules keep it from the device whatever that says."""
    atoms, applied = len(judgment.model.graph.atoms), judgment.demands.applied
    if applied is None:
        return (False,) * atoms
    return tuple(not verdict for verdict in applied.restricted(device, (SUPPORTED,) * atoms))


def _feature(specialized: Specialized, index: int, refusal: Unsupported, where: Where) -> Feature:
    if refusal.reason in _OF_SEGMENTS:
        return Feature(reason=refusal.reason.value, op_type="")
    node = specialized.graph.nodes[index]
    describe = _QUALIFIERS.get(refusal.reason)
    return Feature(
        reason=refusal.reason.value,
        op_type=op_name(node.domain, node.op_type),
        what="" if describe is None else describe(specialized, index, refusal),
        where=where,
    )


def _dtypes(specialized: Specialized, index: int, refusal: Unsupported) -> str:
    return _through(specialized.graph, index, lambda value: value.dtype or "")


def _ranks(specialized: Specialized, index: int, refusal: Unsupported) -> str:
    return _through(specialized.graph, index, lambda value: "" if value.shape is None else str(len(value.shape)))


def _version(specialized: Specialized, index: int, refusal: Unsupported) -> str:
    return str(specialized.nodes[index].since_version)


def _attribute(specialized: Specialized, index: int, refusal: Unsupported) -> str:
    """The refusal's own words, without the names of the node and of its values."""
    node, text = specialized.graph.nodes[index], refusal.detail
    for name in sorted({node.name, *node.reads, *node.outputs} - {""}, key=len, reverse=True):
        text = text.replace(f" {name!r}", "")
    return text


def _through(graph: Graph, index: int, tell: Callable[[Value], str]) -> str:
    """What is told of the inputs, each once, and of the outputs where that differs: `int64 -> float64`."""
    node = graph.nodes[index]
    inputs, outputs = _told(graph, node.inputs, tell), _told(graph, node.outputs, tell)
    input_text, output_text = ", ".join(inputs), ", ".join(outputs)
    return (
        f"{input_text} -> {output_text}"
        if input_text and output_text and not outputs.keys() <= inputs.keys()
        else input_text or output_text
    )


def _told(graph: Graph, names: Iterable[str], tell: Callable[[Value], str]) -> Mapping[str, None]:
    return dict.fromkeys(filter(None, (tell(graph.value(name)) for name in names if name)))


_NO_FEATURE = frozenset((Reason.RULE, Reason.INVALID_NODE))
"""Nothing that a device could learn."""
_OF_SEGMENTS = frozenset((Reason.MEMORY_LIMIT, Reason.SEGMENT_LIMIT))
"""One thing lifts them for all ops."""
_QUALIFIERS: Mapping[Reason, Callable[[Specialized, int, Unsupported], str]] = {
    Reason.UNSUPPORTED_DTYPE: _dtypes,
    Reason.UNSUPPORTED_RANK: _ranks,
    Reason.UNSUPPORTED_VERSION: _version,
    Reason.UNSUPPORTED_ATTRIBUTE: _attribute,
}
_LABELS: Mapping[Reason, str] = {
    Reason.UNSUPPORTED_DTYPE: "{op} of {what}",
    Reason.UNSUPPORTED_RANK: "{op} of rank {what}",
    Reason.UNSUPPORTED_VERSION: "{op} of schema version {what}",
    Reason.UNSUPPORTED_ATTRIBUTE: "{op}: {what}",
    Reason.UNSUPPORTED_TYPE: "{op} on values that are no dense tensors with elements",
    Reason.NOT_CONSTANT: "{op} with computed inputs",
    Reason.DYNAMIC_SHAPE: "{op} with a shape that is not known",
    Reason.DATA_DEPENDENT_SHAPE: "{op} with a shape that is only known while it runs",
    Reason.CONTROL_FLOW: "{op}, which runs other graphs",
    Reason.MEMORY_LIMIT: "segments larger than the memory",
    Reason.SEGMENT_LIMIT: "segments that are refused as a whole",
    Reason.COMPILE_FAILED: "{op}, which fails to compile",
    Reason.DRIVER_ERROR: "{op}, on which the driver fails",
    Reason.WRONG_RESULT: "{op}, which the device computes wrongly",
}
"""By reason; the op alone where there is none."""
