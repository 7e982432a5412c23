"""openvino: Intel's processors, graphics and NPUs through the package `openvino`.

Read it in the order in which a model passes through it: driver, options, context, asking, operators with restrictions
(the reviewed tables), verdicts, loading, program, execution; engine.py is the border to the package.
"""

from __future__ import annotations

from nnadapter.drivers.openvino.driver import OpenvinoDriver
from nnadapter.process.lazily import lazily

__all__ = ["OpenvinoDriver"]

__getattr__ = lazily(
    __name__,
    {
        ".compiler": "read",
        ".engine": "without_conversion_tools",
        ".operators": "OPERATORS STATIC_SHAPE_OPS",
        ".verdicts": "DYNAMIC_SHAPE_RESTRICTIONS ModelAnalysis RESTRICTIONS judge_dynamic",
        ".workarounds": "WORKAROUNDS",
    },
)
