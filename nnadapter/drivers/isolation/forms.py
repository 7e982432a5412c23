"""What a model makes, as far as it says so: then results are written where they are read, and not copied once more."""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.interface import SegmentModel
from nnadapter.drivers.isolation.lane import Form
from nnadapter.drivers.isolation.messages import type_named
from nnadapter.ir.model import Model
from partition.dtypes import DTYPE_OF_ELEMENT_TYPE


def forms_of(model: SegmentModel) -> tuple[Form, ...] | None:
    """Return dimensions and data types of the outputs; None where they are not known, or one has no elements."""
    forms = _of_ir(model) if isinstance(model, Model) else _of_onnx(model)
    return forms if forms is not None and all(all(shape) for shape, _ in forms) else None


def _of_ir(model: Model) -> tuple[Form, ...] | None:
    if model.is_open:
        return None
    types = [model.type_at(output) for output in model.outputs]
    return tuple((type_.dimensions, type_.dtype.array_type) for type_ in types)


def _of_onnx(model: Any) -> tuple[Form, ...] | None:
    forms = []
    for output in model.graph.output:
        tensor = output.type.tensor_type
        name = DTYPE_OF_ELEMENT_TYPE.get(tensor.elem_type)
        if name is None or not tensor.HasField("shape"):
            return None
        try:
            dtype = type_named(name)
        except ValueError:  # of texts
            return None
        forms.append((tuple(dimension.dim_value for dimension in tensor.shape.dim), dtype))
    return tuple(forms)
