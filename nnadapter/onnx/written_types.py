"""What a model itself says of values, with the names of its dimensions replaced by what its inputs have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import onnx

from nnadapter.onnx.building import copied
from nnadapter.onnx.values import value_of
from partition.graph import Value


class Written:
    """The types in a model's `value_info` and outputs. Read on use: only private ops need them.

    Args:
        model: the model.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph

    def types(self, names: Sequence[str], values: Mapping[str, Value]) -> dict[str, onnx.ValueInfoProto]:
        """Return the types of all of some values; nothing if one is not known to the last dimension.

        Args:
            names: of values.
            values: what is known beside the model, by name: of its inputs, the dimensions.
        """
        types_by_name = {name: self._settled(self._by_name[name], values) for name in names if name in self._by_name}
        is_complete = len(types_by_name) == len(names) and all(
            value_of(info).static_shape is not None for info in types_by_name.values()
        )
        return types_by_name if is_complete else {}

    @cached_property
    def _by_name(self) -> dict[str, onnx.ValueInfoProto]:
        return {info.name: info for info in (*self._graph.value_info, *self._graph.output)}

    @cached_property
    def _places(self) -> dict[str, tuple[str, int]]:
        """The input and axis that first has a dimension, by the dimension's name."""
        places: dict[str, tuple[str, int]] = {}
        for info in self._graph.input:
            for axis, dimension in enumerate(info.type.tensor_type.shape.dim):
                if dimension.dim_param:
                    places.setdefault(dimension.dim_param, (info.name, axis))
        return places

    def _settled(self, info: onnx.ValueInfoProto, values: Mapping[str, Value]) -> onnx.ValueInfoProto:
        settled = copied(info)
        for dimension in settled.type.tensor_type.shape.dim:
            name, axis = self._places.get(dimension.dim_param, ("", 0))
            shape = values[name].static_shape if name in values else None
            if shape is not None:
                dimension.dim_value = shape[axis]
        return settled
