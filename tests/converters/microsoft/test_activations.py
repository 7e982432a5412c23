from __future__ import annotations

import pytest

from tests.converters.microsoft.function_node import check
from tests.converters.single_node import floats


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes"),
    [
        ("Gelu", [(2, 3)], {}),
        ("FastGelu", [(2, 3, 4)], {}),
        ("FastGelu", [(2, 3, 4), (4,)], {}),
        ("BiasGelu", [(2, 3, 4), (4,)], {}),
        ("QuickGelu", [(3, 4)], {}),
        ("QuickGelu", [(3, 4)], {"alpha": 1.0}),
    ],
)
def test_gelu(op_type, shapes, attributes):
    check(op_type, [floats(*shape, seed=seed) for seed, shape in enumerate(shapes)], attributes)
