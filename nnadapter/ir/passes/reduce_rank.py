"""Operands of many dimensions, for devices that take few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from nnadapter.errors import InvalidOptionError
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Layout
from nnadapter.ir.passes.rank_rules import RULES
from nnadapter.ir.passes.view import Axes
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.tracing import told_apart

LARGEST_RANK = 4
"""What a device takes unless the driver says otherwise: the rank of an image, and NNAPI's limit."""


def reduce_rank(model: Model, *, largest: int = LARGEST_RANK) -> Model:
    """Rewrite operations on operands of more than `largest` dimensions as operations on fewer.

    1. Neighboring axes to which the same happens are merged, and axes of size 1 dropped, in elementwise operations,
       TRANSPOSE, EXPAND, TILE, SLICE, PAD, CONCAT, SPLIT, GATHER, GATHER_ELEMENTS, REDUCE_…, ARG_…, SOFTMAX,
       LOG_SOFTMAX, CUM_SUM, TOP_K, MAT_MUL, FULLY_CONNECTED and BATCH_, INSTANCE_ and LAYER_NORMALIZATION.
    2. Where that is not enough, a TRANSPOSE becomes several, each of which swaps two runs of axes; EXPAND, TILE, SLICE,
       PAD, REDUCE_SUM, _MAX, _MIN, _PROD and, of floats, _MEAN become one for each axis.
    3. Between them flow operands of at most `largest` dimensions. RESHAPEs from one form to another come where they
       differ; constants are reshaped now. Run `simplify` behind it.
    4. Model inputs and outputs keep their dimensions, so there a RESHAPE has more than `largest`.
    5. Refused, and given operands of all dimensions: every other operation; broadcasting whose axes alternate more than
       `largest` times; operands in NHWC; quantized ones. Applied again, it changes nothing more.

    Args:
        model: left as it is.
        largest: 3 or more.

    Raises:
        InvalidOptionError: `largest` is less than 3.
    """
    if largest < 3:
        raise InvalidOptionError(f"reduce_rank got largest={largest}, expected 3 or more")
    if all(operand.type.rank <= largest for operand in model.operands):
        return model
    ranks = Ranks(ModelEditor(model), largest)
    return ranks.run()


class Ranks:
    """One sweep: what the rules of `rank_rules` work with."""

    def __init__(self, editor: ModelEditor, largest: int) -> None:
        self.editor = editor
        self.largest = largest
        self._low: dict[int, int] = {}
        """Operands of many dimensions, and what holds the same elements in few."""
        self._there: set[int] = set()
        """Those of them that are there as well."""
        self._shapers: dict[int, int] = {}
        """Operands that a RESHAPE makes of one in few, and which."""
        self._shaped: dict[tuple[int, object], int] = {}
        self._origins: tuple[int, ...] = ()

    def run(self) -> Model:
        """Go through the model and return what comes out."""
        for index in self.editor.sweep():
            operation = self.editor.operation(index)
            touched = [
                operand_index for operand_index in (*operation.inputs, *operation.outputs) if operand_index != ABSENT
            ]
            if any(map(self._is_high, touched)):
                self._origins = (
                    index,
                    *(
                        self._shapers[operand_index]
                        for operand_index in operation.inputs
                        if operand_index in self._shapers
                    ),
                )
                self._visit(index, operation, touched)
        for output in dict.fromkeys(self.editor.model.outputs):
            self._plain(output)
        unread = [
            index
            for operand, index in self._shapers.items()
            if not self.editor.consumers(operand) and not self.editor.is_output(operand)
        ]
        if unread:
            self.editor.remove(unread)
        return self.editor.finish()

    def dimensions(self, operand: int) -> Axes:
        """Those that the model has."""
        return self.editor.type_of(operand).dimensions

    def is_floating(self, operand: int) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.editor.type_of(operand).dtype.is_floating

    def any_shape(self, operand: int) -> int:
        """The operand's elements in few dimensions, whichever."""
        if not self._is_high(operand):
            return operand
        return self._low[operand] if operand in self._low else self.shaped(operand, self._usual(operand))

    def shaped(self, operand: int, shape: Axes) -> int:
        """The operand's elements in these dimensions."""
        source = self._low.get(operand, operand)
        if told_apart(self.dimensions(source)) == told_apart(shape):
            return source
        key = source, told_apart(shape)
        if key not in self._shaped:
            self._shaped[key] = self._reshaped(source, shape)
        return self._shaped[key]

    def add(self, type_: str, inputs: Sequence[int], attributes: Mapping[str, AttributeValue]) -> tuple[int, ...]:
        """Add an operation that stands for the one that is visited."""
        return self.editor.add_operation(type_, inputs, attributes, origins=self._origins)

    def _is_high(self, operand: int) -> bool:
        return len(self.dimensions(operand)) > self.largest

    def _usual(self, operand: int) -> Axes:
        dimensions = self.dimensions(operand)
        trailing_rank = self.largest - 1
        return prod(dimensions[:-trailing_rank]), *dimensions[-trailing_rank:]

    def _reshaped(self, source: int, shape: Axes) -> int:
        value = self.editor.value_of(source)
        if value is not None:
            return self.editor.add_constant(f"{self.editor.operand(source).name}:reshaped", value.reshape(shape))
        return self.add("RESHAPE", (source,), {"shape": shape})[0]

    def _visit(self, index: int, operation: Operation, touched: Sequence[int]) -> None:
        types = [self.editor.type_of(operand) for operand in touched]
        if any(type_.layout is Layout.NHWC or type_.quantization is not None for type_ in types):
            results = None
        elif operation.type == "RESHAPE":
            self._reshape(index, *operation.inputs, *operation.outputs)
            return
        else:
            rule = RULES.get(operation.type)
            results = None if rule is None else rule(self, operation)
        if results is None:
            for operand in operation.inputs:
                self._plain(operand)
            return
        self._give(index, operation.outputs, results)

    def _give(self, index: int, outputs: Sequence[int], results: Sequence[int]) -> None:
        """Let `results`, of whatever dimensions, stand for an operation's outputs."""
        pairs = zip(outputs, results, strict=True)
        low = [
            result if self._is_high(output) else self.shaped(result, self.dimensions(output))
            for output, result in pairs
        ]
        self.editor.remove((index,))
        for output, result in zip(outputs, low, strict=True):
            if self._is_high(output):
                self._low[output] = result
            else:
                self.editor.substitute(output, result)

    def _reshape(self, index: int, source: int, output: int) -> None:
        """See rule 3. A RESHAPE from few dimensions stays until it is known that nobody reads it."""
        if not self._is_high(source):
            self._low[output] = source
            self._there.add(output)
            self._shapers[output] = index
        elif source in self._low or self._is_high(output):
            shape = self._usual(output) if self._is_high(output) else self.dimensions(output)
            self._give(index, (output,), self.add("RESHAPE", (self._low.get(source, source),), {"shape": shape}))

    def _plain(self, operand: int) -> None:
        """See that the operand is there in the dimensions that the model has."""
        if operand not in self._low or operand in self._there:
            return
        low, shape = self._low[operand], self.dimensions(operand)
        producer = self.editor.producer(low)
        origins = self._origins if producer is None else (producer,)
        (result,) = self.editor.add_operation("RESHAPE", (low,), {"shape": shape}, origins=origins)
        self.editor.substitute(operand, result)
        self._low[result] = low
        self._there.update((operand, result))
