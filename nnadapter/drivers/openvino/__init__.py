"""openvino: Intel CPUs, GPUs and NPUs through the package `openvino`.

Reading order: driver, compiler, operators and verdicts (reviewed tables) with forms, workarounds, program; engine is
the boundary to the package.
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".compiler": "read",
        ".driver": "OpenvinoDriver",
        ".engine": "without_conversion_tools",
        ".operators": "OPERATORS STATIC_SHAPE_OPS",
        ".verdicts": "DYNAMIC_SHAPE_RESTRICTIONS ModelAnalysis RESTRICTIONS judge_dynamic",
        ".workarounds": "WORKAROUNDS",
    },
)
