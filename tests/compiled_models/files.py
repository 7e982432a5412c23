"""Small compiled files of every kind, and edits of their messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO

import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.engine import MESSAGES, MODEL
from nnadapter.store import Container, ContainerWriter
from tests.models import CHAIN, HEAD, SANDWICH, numbers, parse, run_whole

NETWORK = f"""{HEAD} network (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z)
<float[4, 3, 3, 3] w = {{{", ".join(str(i % 7 / 7) for i in range(108))}}}, float[1, 4, 8, 8] k> {{
    c = Conv<pads = [1, 1, 1, 1]>(x, w)
    d = Relu(c)
    e = Erf(d)
    y = Sigmoid(e)
    f = Add(y, d)
    z = Mul(f, k)
}}"""
CHOOSING = f"""{HEAD} choosing (float[2, 3] x, int64 r) => (float[2, 3] y) <int64 one = {{1}}> {{
    c = Equal(r, one)
    y = If(c) <
        then_branch = t () => (float[2, 3] p) {{ p = Exp(x) }},
        else_branch = e () => (float[2, 3] q) {{ q = Neg(x) }}
    >
}}"""
X = {"x": numbers(1, 3, 8, 8)}
BAN = "[[ban]]\nop_type = 'Erf'\ndevice = '{}'"


def network():
    model = onnx.parser.parse_model(NETWORK)
    model.graph.initializer.append(onnx.numpy_helper.from_array(numbers(1, 4, 8, 8, seed=3), "k"))
    return model


def chain():
    return parse(CHAIN)


def sandwich():
    return parse(SANDWICH)


def choosing():
    return parse(CHOOSING)


@dataclass(frozen=True)
class Kind:
    """Kind of file: the model and how it is compiled."""

    device: str
    model: object
    feed: dict
    arguments: dict = field(default_factory=dict)

    def written(self, folder):
        """Compile it; return the file's bytes and the expected results."""
        nna.compile(self.model(), folder / "f", devices=[self.device], **self.arguments)
        return (folder / "f").read_bytes(), run_whole(self.model(), self.feed)


KINDS = {
    "a program of fake_npu": Kind("fake_npu", chain, {"x": numbers(2, 3)}),
    "a program of openvino": Kind("openvino", chain, {"x": numbers(2, 3)}),
    "a program of a driver in C": Kind("acme_c", chain, {"x": numbers(2, 3)}),
    "a program of a driver from outside": Kind("keeping", chain, {"x": numbers(2, 3)}),
    "a driver without programs": Kind("trial", chain, {"x": numbers(2, 3)}, {"options": {"fallback": "forbid"}}),
    "the CPU alone": Kind("cpu", chain, {"x": numbers(2, 3)}),
    "constants, and a device beside the CPU": Kind(
        "fake_npu", network, X, {"options": {"rules": BAN.format("fake_npu")}}
    ),
    "open sizes": Kind(
        "fake_npu",
        sandwich,
        {"x": numbers(5, 4)},
        {"input_shapes": [{"x": (2, 4)}, {"x": (7, 4)}], "dynamic_shapes": True},
    ),
    "branches that an input chooses": Kind("fake_npu", choosing, {"x": numbers(2, 3), "r": np.array(1)}),
    "several shapes, and the model": Kind(
        "fake_npu",
        sandwich,
        {"x": numbers(5, 4)},
        {"input_shapes": [{"x": (2, 4)}, {"x": (5, 4)}], "keep_model": True},
    ),
}


def kind_of(name, request):
    """Return the kind; skip if its device is unavailable."""
    kind = KINDS[name]
    if kind.device == "openvino":
        pytest.importorskip("openvino")
    if kind.device == "acme_c":
        request.getfixturevalue("acme")
    return kind


def same(results, expected):
    """Return whether results are equal up to rounding."""
    return len(results) == len(expected) and all(
        left.shape == right.shape and left.dtype == right.dtype and np.allclose(left, right, rtol=1e-5, atol=1e-5)
        for left, right in zip(results, expected, strict=True)
    )


def parts_of(contents):
    """Return the parts of a file, as kind and bytes, and the index of its message."""
    container = Container.of(contents)
    parts = [(part.kind, bytes(container.contents(number))) for number, part in enumerate(container.parts)]
    return parts, next(number for number, (kind, _) in enumerate(parts) if kind == MODEL)


def joined(parts):
    """Return a file of these parts, with right checksums."""
    file = BytesIO()
    writer = ContainerWriter(file)
    for kind, contents in parts:
        writer.add(kind, contents)
    writer.finish()
    return file.getvalue()


def forged(contents, change):
    """Return the file with an edited message and right checksums."""
    parts, at = parts_of(contents)
    message = MESSAGES.parse("CompiledModel", parts[at][1])
    change(message)
    parts[at] = (MODEL, message.SerializeToString())
    return joined(parts)


def changed(path, change):
    """Edit the message of the file at `path`."""
    path.write_bytes(forged(path.read_bytes(), change))
