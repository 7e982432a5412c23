from __future__ import annotations

import numpy as np
import onnx

from tests.drivers.openvino.sweep.attributes import Shape
from tests.drivers.openvino.sweep.forms import Draft
from tests.drivers.openvino.sweep.shapes import some_shape

_INTEGERS = (np.uint8, np.int8, np.uint8, np.int8, np.uint16, np.int16)
_SCALES = (1.0, 0.5, 0.25, 0.1, 0.037, 0.0123, 2.0)


def quantize(draft: Draft) -> None:
    shape = some_shape(draft.random)
    draft.shapes = [shape]
    dtype = draft.random.choice(_INTEGERS)
    _draw_parameters(draft, shape, dtype, may_be_left_out=dtype == np.uint8)
    if "output_dtype" in draft.attributes:
        draft.attributes["output_dtype"] = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def dequantize(draft: Draft) -> None:
    random, shape = draft.random, some_shape(draft.random)
    dtype = random.choice((*_INTEGERS, np.int32))
    draft.shapes = [shape]
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if random.random() < 0.8 else (0, 3)
    draft.drawn[0] = np.asarray(_generator(draft).integers(low, high, shape, dtype=dtype, endpoint=True))
    _draw_parameters(draft, shape, dtype, may_be_left_out=True)
    draft.attributes.pop("output_dtype", None)


def _draw_parameters(draft: Draft, shape: Shape, dtype: type, *, may_be_left_out: bool) -> None:
    random, generator = draft.random, _generator(draft)
    draft.draw_attributes(shape)
    parameters = _parameter_shape(draft, shape)
    real = np.float16 if draft.opset > 18 and random.random() < 0.2 else np.float32
    draft.arrays[1] = np.asarray(generator.choice(_SCALES, parameters)).astype(real)
    if may_be_left_out and random.random() < 0.3:
        return
    ends = np.iinfo(dtype)
    points = [0] if dtype == np.int32 else [0, 0, ends.min, ends.max, ends.max // 2 + 1, 3]
    draft.arrays[2] = np.asarray(generator.choice(points, parameters)).astype(dtype)


def _parameter_shape(draft: Draft, shape: Shape) -> Shape:
    random = draft.random
    along = draft.attributes.get("axis", 1)
    is_blocked = draft.attributes.get("block_size", 0) > 0
    kind = "blocks" if is_blocked else random.choice(("one", "axis"))
    if not shape or along >= len(shape):
        draft.attributes.pop("block_size", None)
        kind = "one"
    if kind == "one":
        return random.choice(((), (), (1,)))
    if kind == "axis":
        return (shape[along],)
    block = draft.attributes["block_size"]
    return tuple(-(-size // block) if at == along % len(shape) else size for at, size in enumerate(shape))


def _generator(draft: Draft) -> np.random.Generator:
    return np.random.default_rng(draft.random.randrange(1 << 30))
