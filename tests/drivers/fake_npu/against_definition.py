from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.ir import Array
from nnadapter.ir.definition import by_definition
from tests.drivers.fake_npu.harness import context, model_of


def agrees(
    type_: str,
    arrays: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    tolerance: float = 0.0,
    constants: Sequence[int] = (),
) -> list[Array]:
    """Compare all outputs of a deserialized program with the definition and return them."""
    model, feeds = model_of(type_, arrays, attributes, constants)
    opened = context()
    assert all(opened.supported(model)), opened.supported(model)
    deserialized = opened.deserialize(opened.compile(model).serialize())
    results = list(deserialized.create_execution().compute(feeds))
    for got, want in zip(results, by_definition(model, feeds), strict=True):
        assert got.dtype == want.dtype
        wide = np.float64 if got.dtype.kind == "f" else got.dtype
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance)
    return results
