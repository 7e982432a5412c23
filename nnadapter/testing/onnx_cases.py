"""Groups for devices that take ONNX: boundary shapes, random graphs, invalid models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from types import MappingProxyType

import onnx
from onnx import helper

from nnadapter.testing.bench import Bench
from nnadapter.testing.case import Case
from nnadapter.testing.ir_cases import refused
from nnadapter.testing.onnx_models import NODES, of_many_nodes, of_op
from nnadapter.testing.outcomes import Outcome, SkippedOutcome

_NOT_TAKEN = "the op does not go with these dimensions"
BOUNDARIES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "scalar": (),
        "zero": (2, 0, 3),
        "zero-image": (0, 3, 4, 4),
        "one": (1, 1, 1, 1),
        "odd": (7, 13),
        "odd-image": (1, 3, 7, 11),
        "large": (3, 4099),
        "high-rank": (1, 2, 1, 2, 1, 2, 3),
    }
)
"""Dimensions at which drivers go wrong, by name."""
Spoil = Callable[[onnx.ModelProto], None]


def boundaries(bench: Bench) -> Iterator[Case]:
    """Each op, with each kind of unusual dimensions."""
    kinds = ("zero", "odd") if bench.settings.short else tuple(BOUNDARIES)
    for op_type in NODES:
        for kind in kinds:
            yield Case(f"boundary/{kind}/{op_type}", partial(_boundary, op_type=op_type, dimensions=BOUNDARIES[kind]))


def graphs(bench: Bench) -> Iterator[Case]:
    """Random graphs of what the device takes."""
    for number in range(20 if bench.settings.short else 120):
        yield Case(f"graphs/random/{number}", _graph)


def refusals(bench: Bench) -> Iterator[Case]:
    """Valid models that the device takes, spoilt in one way."""
    for name in SPOILS:
        yield Case(f"refusals/{name}/0", partial(_refusal, name=name))


def _boundary(bench: Bench, random: Random, op_type: str, dimensions: tuple[int, ...]) -> Outcome:
    subject = of_op(bench, random, op_type, dimensions)
    return SkippedOutcome(_NOT_TAKEN) if subject is None else bench.examine(subject)


def _graph(bench: Bench, random: Random) -> Outcome:
    subject = of_many_nodes(bench, random, random.randint(2, 10))
    return (
        SkippedOutcome("the device takes no op that graphs are made of") if subject is None else bench.examine(subject)
    )


def _refusal(bench: Bench, random: Random, name: str) -> Outcome:
    subject = of_many_nodes(bench, random, 3)
    if subject is None:
        return SkippedOutcome("the device takes no op that graphs are made of")
    spoilt = onnx.ModelProto()
    spoilt.CopyFrom(subject.model)
    SPOILS[name](spoilt)
    return refused(bench, spoilt, name.replace("-", " "))


def _unknown_op_type(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "NoSuchOperator"


def _unknown_domain(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "no.such.domain"


def _read_and_never_made(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "never made"


def _without_inputs(model: onnx.ModelProto) -> None:
    del model.graph.node[0].input[:]


def _reads_its_own_result(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = model.graph.node[0].output[0]


def _data_types_that_do_not_fit(model: onnx.ModelProto) -> None:
    """A sum of integers and floats in front of everything."""
    model.graph.initializer.append(helper.make_tensor("integers", onnx.TensorProto.INT64, [1], [1]))
    model.graph.node.insert(0, helper.make_node("Add", ["x", "integers"], ["mixed"], name="mixed"))
    model.graph.output.append(helper.make_tensor_value_info("mixed", onnx.TensorProto.FLOAT, None))


SPOILS: Mapping[str, Spoil] = MappingProxyType(
    {
        "unknown-op-type": _unknown_op_type,
        "unknown-domain": _unknown_domain,
        "read-and-never-made": _read_and_never_made,
        "without-inputs": _without_inputs,
        "reads-its-own-result": _reads_its_own_result,
        "data-types-that-do-not-fit": _data_types_that_do_not_fit,
    }
)
"""What makes a valid ONNX model invalid beyond doubt, each in one way."""
