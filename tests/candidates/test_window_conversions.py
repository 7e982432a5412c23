import onnx
import onnx.parser
import pytest

from nnadapter.candidates import Conversions, prepare
from tests.candidates.test_conversions import Shape, same

_VOLUMES = """
<ir_version: 10, opset_import: ["": 22]>
volumes (float[n, 2, d, h, w] x) => (float[n, 2, p, q, r] y) {
    pooled = MaxPool <kernel_shape = [2, 2, 2], strides = [2, 2, 2], pads = [1, 0, 0, 0, 1, 0]> (x)
    norm = GlobalLpPool (pooled)
    mean = AveragePool <kernel_shape = [3, 1, 1], auto_pad = "SAME_UPPER"> (pooled)
    y = Div (mean, norm)
}
"""
_SAMPLED = """
<ir_version: 10, opset_import: ["": 20]>
sampled (float[n, 3, h, w] x, float[n, 2, 3] theta) => (float[n, c, h, w] y) {
    size = Shape (x)
    grid = AffineGrid (theta, size)
    found = GridSample (x, grid)
    smaller = Constant <value_ints = [4, 4]> ()
    y = CenterCropPad <axes = [2, 3]> (found, smaller)
}
"""
_WRITTEN = """
<ir_version: 10, opset_import: ["": 18]>
written (float[n, m] x, int64[k, 1] at, float[k, m] rows, int64[n, 2] chosen) => (float[n, 2] y) {
    table = ScatterND <reduction = "add"> (x, at, rows)
    turned = GatherElements <axis = 1> (table, chosen)
    y = ScatterElements <axis = 1> (turned, chosen, turned)
}
"""


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (_VOLUMES, [{"x": (1, 2, 8, 8, 8)}, {"x": (2, 2, 6, 10, 4)}, {"x": (2, 2, 7, 10, 5)}]),
        (_SAMPLED, [{"x": (n, 3, h, w), "theta": (n, 2, 3)} for n, h, w in ((1, 6, 8), (2, 5, 9), (2, 3, 2))]),
        (
            _WRITTEN,
            [
                {"x": (n, m), "at": (k, 1), "rows": (k, m), "chosen": (n, 2)}
                for n, m, k in ((4, 5, 3), (6, 3, 7), (2, 9, 1))
            ],
        ),
    ],
)
def test_converted_windows_at_other_sizes(text: str, shapes: list[dict[str, Shape]]) -> None:
    prepared = prepare(onnx.parser.parse_model(text))
    conversions = Conversions(prepared)
    for each in shapes:
        same(conversions, prepared, each)
        assert all(conversions.of(each)[1].verdicts)
