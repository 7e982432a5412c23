"""Generate text with a small language model that keeps its cache on a device, and compare with ONNX Runtime.

    python examples/generate.py [-d DEVICE] [--file FILE] [--tokens N] [--layers N] [--width N] [--prompt TEXT]

The model is built here with seeded random weights, so its text is meaningless. Each step takes one token and the keys
and values of all earlier tokens, which the previous step left on the device. Both sessions share the loop: an OrtValue
may be on any device.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import nnadapter as nna

WORDS = [" ", ". ", *(consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeiou")]
HEADS, POSITIONS, SEED = 4, 2048, 23
RANDOMNESS = 0.8
"""Randomness of the choice of words; 0 for the most likely one."""


def main() -> None:
    """Build the model, generate text on both sessions, and print."""
    chosen = parse_arguments()
    model = build_model(chosen.layers, chosen.width)
    prompt = words_of(chosen.prompt)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    if chosen.file is not None:
        nna.compile(model, chosen.file, devices=chosen.device)  # one file for every length of the cache
    with nna.InferenceSession(chosen.file or model, devices=chosen.device) as ours:
        device = ours.devices[0]
        first, _, _ = generate(ours, device, prompt, chosen)  # compiles
        text, seconds, copied = generate(ours, device, prompt, chosen)
        assert text == first, "the same seed says the same"
    expected, baseline, _ = generate(theirs, "cpu", prompt, chosen)
    print(f"{chosen.prompt}{text}\n")
    same = sum(map(str.__eq__, text, expected)) / max(len(expected), 1)
    steps = chosen.tokens - 1  # the prompt yields the first token
    print(f"{device}: {steps / seconds:.0f} tokens per second, cache of {cache_bytes(chosen)} bytes at the end")
    print(f"ONNX Runtime: {steps / baseline:.0f} tokens per second, {same:.0%} of the same letters")
    print(f"copied between {device} and the host in the last step: {copied}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Generate text on a device that keeps the cache.")
    parser.add_argument("-d", "--device", default="fake_npu", help="what `nnadapter devices` lists (default: fake_npu)")
    parser.add_argument("--file", help="compile the model into this file first, and run that")
    parser.add_argument("--tokens", type=int, default=60, help="how many to generate (default: 60)")
    parser.add_argument("--layers", type=int, default=2, help="of the model (default: 2)")
    parser.add_argument("--width", type=int, default=128, help="numbers per token (default: 128)")
    parser.add_argument("--prompt", default="bana ", help="what the text begins with (default: 'bana ')")
    chosen = parser.parse_args()
    room = POSITIONS + 1 - len(words_of(chosen.prompt))
    if not 1 < chosen.tokens <= room:
        parser.error(f"--tokens is {chosen.tokens}, expected 2 to {room} behind this prompt")
    if chosen.layers < 1 or chosen.width < 1 or chosen.width % HEADS:
        parser.error(f"--layers must be positive, and --width a multiple of {HEADS}, the number of heads")
    return chosen


def generate(session: Any, device: str, prompt: list[int], chosen: argparse.Namespace) -> tuple[str, float, str]:
    """Return the text, the seconds after the prompt, and the copies of the last step.

    Args:
        session: a session of nnadapter or ONNX Runtime.
        device: device of the cache.
        prompt: word numbers.
        chosen: command-line options.
    """
    names = [f"{layer}.{part}" for layer in range(chosen.layers) for part in ("keys", "values")]
    binding, noise = session.io_binding(), np.random.default_rng(SEED)
    for name in names:
        binding.bind_cpu_input(f"past.{name}", np.empty((1, HEADS, 0, chosen.width // HEADS), np.float32))
    tokens: list[int] = []
    started = perf_counter()
    for position in range(len(prompt) + chosen.tokens - 1):
        word = prompt[position] if position < len(prompt) else tokens[-1]
        binding.bind_cpu_input("word", np.array([[word]], np.int64))
        binding.bind_cpu_input("position", np.array([position], np.int64))
        binding.bind_output("logits", "cpu")
        for name in names:
            binding.bind_output(f"present.{name}", device)
        session.run_with_iobinding(binding)
        logits, *cache = binding.get_outputs()
        for name, value in zip(names, cache, strict=True):
            binding.bind_ortvalue_input(f"past.{name}", value)
        if position == len(prompt) - 1:
            started = perf_counter()
        if position >= len(prompt) - 1:
            scores = logits.numpy()[0, -1] + RANDOMNESS * noise.gumbel(size=len(WORDS))
            tokens.append(int(scores.argmax()))
    return "".join(WORDS[word] for word in tokens), perf_counter() - started, copies_of(session)


def copies_of(session: Any) -> str:
    """Describe the copies of the last run; ONNX Runtime does not report any."""
    provenance = getattr(session, "provenance", None)
    transfers = provenance.transfers if provenance is not None else ()
    return ", ".join(f"{transfer.value} ({transfer.nbytes} bytes)" for transfer in transfers) or "nothing"


def cache_bytes(chosen: argparse.Namespace) -> int:
    """Return the bytes of keys and values after the last step."""
    return 2 * chosen.layers * chosen.width * 4 * (len(words_of(chosen.prompt)) + chosen.tokens - 1)


def words_of(text: str) -> list[int]:
    """Return the word numbers of a text, without unknown words."""
    pairs = [text[at : at + length] for at in range(len(text)) for length in (2, 1) if at + length <= len(text)]
    return [WORDS.index(pair) for pair in pairs if pair in WORDS] or [0]


def build_model(layers: int, width: int) -> onnx.ModelProto:
    """Return a decoder: a word and the cache -> scores of the next word and the cache.

    Inputs: `word` int64[1, 1], `position` int64[1], `past.L.keys` and `past.L.values` float32[1, heads, past, depth].
    Outputs: `logits` float32[1, 1, words], and `present`, one position longer than `past`.
    """
    writer = Writer(width)
    x = writer.node("Add", writer.node("Gather", writer.weight(len(WORDS), width, scale=1.0), "word"), places(writer))
    for layer in range(layers):
        x = add_layer(writer, layer, x)
    writer.node("MatMul", writer.normalized(x), writer.weight(width, len(WORDS), scale=3.0), output="logits")
    inputs = [value("word", TensorProto.INT64, [1, 1]), value("position", TensorProto.INT64, [1])]
    outputs = [value("logits", TensorProto.FLOAT, [1, 1, len(WORDS)])]
    for layer in range(layers):
        for part in ("keys", "values"):
            depth = width // HEADS
            inputs.append(value(f"past.{layer}.{part}", TensorProto.FLOAT, [1, HEADS, "past", depth]))
            outputs.append(value(f"present.{layer}.{part}", TensorProto.FLOAT, [1, HEADS, "all", depth]))
    graph = helper.make_graph(writer.nodes, "generate", inputs, outputs, writer.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class Writer:
    """Collector of nodes and seeded random weights, with generated names."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._generator = np.random.default_rng(SEED)

    def node(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        name = output or f"{op_type.lower()}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def constant(self, array: Any) -> str:
        """Add a constant; return its name."""
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"weight.{len(self.weights)}"))
        return self.weights[-1].name

    def weight(self, rows: int, columns: int, scale: float = 1.0) -> str:
        """Add a random matrix."""
        matrix = self._generator.standard_normal((rows, columns)) * scale / rows**0.5
        return self.constant(matrix.astype(np.float32))

    def normalized(self, x: str) -> str:
        """Add a layer normalization."""
        ones, zeros = np.ones(self.width, np.float32), np.zeros(self.width, np.float32)
        return self.node("LayerNormalization", x, self.constant(ones), self.constant(zeros), axis=-1)


def places(writer: Writer) -> str:
    """Add the embedding of a token's position, [1, width]."""
    return writer.node("Gather", writer.weight(POSITIONS, writer.width, scale=POSITIONS**0.5 / 4), "position")


def add_layer(writer: Writer, layer: int, x: str) -> str:
    """Add attention over all tokens so far, and two products with a ReLU between, both with residual connections."""
    width, depth = writer.width, writer.width // HEADS
    normalized = writer.normalized(x)
    split_shape = writer.constant(np.array([1, 1, HEADS, depth]))
    query, keys, values = (
        writer.node(
            "Transpose",
            writer.node("Reshape", writer.node("MatMul", normalized, writer.weight(width, width)), split_shape),
            perm=[0, 2, 1, 3],
        )
        for _ in range(3)
    )
    keys, values = (
        writer.node("Concat", f"past.{layer}.{part}", projection, output=f"present.{layer}.{part}", axis=2)
        for part, projection in (("keys", keys), ("values", values))
    )
    products = writer.node("MatMul", query, writer.node("Transpose", keys, perm=[0, 1, 3, 2]))
    weights = writer.node("Softmax", writer.node("Mul", products, writer.constant(np.float32(depth**-0.5))), axis=-1)
    mixed = writer.node("Transpose", writer.node("MatMul", weights, values), perm=[0, 2, 1, 3])
    joined = writer.node("Reshape", mixed, writer.constant(np.array([1, 1, width])))
    x = writer.node("Add", x, writer.node("MatMul", joined, writer.weight(width, width)))
    wide = writer.node("Relu", writer.node("MatMul", writer.normalized(x), writer.weight(width, 4 * width)))
    return writer.node("Add", x, writer.node("MatMul", wide, writer.weight(4 * width, width)))


def value(name: str, element_type: int, shape: list[Any]) -> onnx.ValueInfoProto:
    """Return an input or output of a graph."""
    return helper.make_tensor_value_info(name, element_type, shape)


if __name__ == "__main__":
    main()
