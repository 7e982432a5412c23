"""THE table: what the schema does not say about an operation, for those who want to make one at random.

An operation that is not here is made from its schema alone (`generic`). If `test_reach` says that one was never
reached, add a recipe: `attributes` for values that fit the inputs' types or each other, `operands` for inputs that fit
each other, `sound` for values that ONNX leaves undefined. If it cannot be made, say why in `UNREACHED`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from nnadapter.ir.model import ABSENT
from nnadapter.ir.operand import QuantizedType
from nnadapter.ir.schema import OperationSchema
from nnadapter.testing.random_models import attributes, defined, layers, operands
from nnadapter.testing.random_models.generic import Types, attributes_of, operands_of
from nnadapter.testing.random_models.maker import Maker, Proposal, Sound


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one operation is made; every part has a default."""

    operands: operands.Operands = operands_of
    """Chooses the inputs."""
    attributes: attributes.Attributes = attributes.none
    """Chooses some attributes."""
    results: Callable[[Random, Types], Sequence[QuantizedType]] = layers.not_quantized
    """Chooses how results are quantized, where the model has to say."""
    sound: Sound = defined.always
    """Whether the result is defined for these values."""
    knows_values: bool = True
    """Whether the oracle has a result for all that is sound; if not, what it cannot compute is left out."""

    def propose(self, maker: Maker, schema: OperationSchema) -> Proposal:
        """Inputs, attributes and quantized results."""
        chosen = self.operands(maker, schema)
        types = [None if operand == ABSENT else maker.type_of(operand) for operand in chosen]
        preset_values = self.attributes(maker.random, types)
        return chosen, attributes_of(maker, schema, types, preset_values), self.results(maker.random, types)


_RESIZED = Recipe(attributes=attributes.resized)

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "BATCH_NORMALIZATION": Recipe(operands=operands.per_channel),
        "CAST": Recipe(attributes=attributes.cast, sound=defined.cast),
        "CLIP": Recipe(attributes=attributes.clip),
        "COL_TO_IM": Recipe(operands=layers.columns, attributes=layers.columns_attributes),
        "CONCAT": Recipe(operands=operands.concatenated),
        "CONV_2D": Recipe(operands=operands.convolution, attributes=attributes.convolution),
        "CONV_2D_TRANSPOSE": Recipe(
            operands=operands.transposed_convolution, attributes=attributes.transposed_convolution
        ),
        "DEFORMABLE_CONV_2D": Recipe(operands=layers.deformable, attributes=layers.deformable_attributes),
        "DEPTH_TO_SPACE": Recipe(operands=operands.deep_image),
        "DEQUANTIZE": Recipe(operands=layers.quantized),
        "DIV": Recipe(sound=defined.division),
        "FLOOR_DIV": Recipe(sound=defined.division),
        "EINSUM": Recipe(attributes=attributes.equation, knows_values=False),
        "EXPAND": Recipe(attributes=attributes.expanded),
        "FULLY_CONNECTED": Recipe(operands=operands.fully_connected),
        "GATHER": Recipe(operands=operands.gathered, sound=defined.in_range),
        "GATHER_ELEMENTS": Recipe(operands=operands.gathered_elements, sound=defined.in_range),
        "GRU": Recipe(operands=layers.recurrent, attributes=layers.recurrent_attributes("GRU")),
        "INSTANCE_NORMALIZATION": Recipe(operands=operands.per_channel),
        "LAYER_NORMALIZATION": Recipe(
            operands=operands.spread_behind,
            attributes=attributes.late_axis,
            sound=defined.spread(defined.axes_behind),
        ),
        "LINEAR_ATTENTION": Recipe(operands=layers.linear_attention, attributes=layers.linear_attention_attributes),
        "LOCAL_RESPONSE_NORMALIZATION": Recipe(attributes=attributes.response),
        "LSTM": Recipe(operands=layers.recurrent, attributes=layers.recurrent_attributes("LSTM")),
        "MAT_MUL": Recipe(operands=operands.matrices),
        "MAT_MUL_N_BITS": Recipe(operands=operands.few_bits, attributes=attributes.few_bits),
        "MAX_UNPOOL_2D": Recipe(operands=operands.unpooled, attributes=attributes.twice, knows_values=False),
        "MAX_ROI_POOL": Recipe(operands=layers.regions, sound=defined.of_the_batch),
        "MEAN_VARIANCE_NORMALIZATION": Recipe(sound=defined.spread(defined.axes_given)),
        "MOD": Recipe(sound=defined.division),
        "PAD": Recipe(attributes=attributes.pads),
        "POW": Recipe(sound=defined.power),
        "QUANTIZE": Recipe(results=layers.quantized_result),
        "RESHAPE": Recipe(attributes=attributes.shape),
        "RESIZE_LINEAR": _RESIZED,
        "RESIZE_NEAREST": _RESIZED,
        "REVERSE_SEQUENCE": Recipe(sound=defined.lengths, knows_values=False),
        "RNN": Recipe(operands=layers.recurrent, attributes=layers.recurrent_attributes("RNN")),
        "ROI_ALIGN": Recipe(operands=layers.regions, sound=defined.of_the_batch),
        "ROTARY_EMBEDDING": Recipe(operands=layers.rotary),
        "SLICE": Recipe(attributes=attributes.slices),
        "SPLIT": Recipe(attributes=attributes.split),
        "STORAGE_CAST": Recipe(results=layers.said_to_be),
        "SCATTER_ELEMENTS": Recipe(sound=defined.apart_along_axis, knows_values=False),
        "SCATTER_ND": Recipe(operands=operands.scattered, knows_values=False),
        "TENSOR_SCATTER": Recipe(sound=defined.written, knows_values=False),
        "TILE": Recipe(attributes=attributes.repeats),
        "TOP_K": Recipe(attributes=attributes.top_k),
        "TRANSPOSE": Recipe(attributes=attributes.perm),
    }
)

FROM_SCHEMA = Recipe(knows_values=False)
"""How an operation is made that is not in the table."""

UNREACHED: Mapping[str, str] = MappingProxyType({"CUSTOM": "what it computes is written elsewhere, in a kernel"})
"""Operations that are not made at random, and why."""
