from __future__ import annotations

import numpy as np

from nnadapter.exporting import to_onnx
from nnadapter.ir import SCHEMAS
from nnadapter.ir.definition import entry_of
from nnadapter.onnx import inlined
from tests.every import for_every
from tests.models import run_whole

UNCOMPUTED = {
    "CUSTOM": "nobody but a kernel knows the op",
    "MAT_MUL_N_BITS": "ONNX Runtime has blocks of 16 at least",
    "MAX_ROI_POOL": "ONNX Runtime has no kernel of version 22",
    "ROI_ALIGN": "ONNX Runtime has no kernel of version 22",
}


@for_every(type_=[type_ for type_ in SCHEMAS if type_ not in UNCOMPUTED])
def test_examples_equal_onnx_runtime(type_):
    example = entry_of(type_).example
    model = inlined(to_onnx(example.model))
    arrays = [given[1] for given in example.inputs if given is not None]
    got = run_whole(model, {value.name: array for value, array in zip(model.graph.input, arrays, strict=True)})
    for result, (_, expected) in zip(got, example.outputs, strict=True):
        np.testing.assert_allclose(result.astype(np.float64), expected.astype(np.float64), rtol=1e-4, atol=1e-5)
