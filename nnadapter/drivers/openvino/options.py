"""The options of a context, and the engine's properties that they stand for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nnadapter.drivers.capability import Option, OptionValues
from nnadapter.errors import InvalidOptionError, close_names

PRECISIONS = {"float32": ("FP32", "f32"), "float16": ("FP16", "f16"), "bfloat16": ("BF16", "bf16")}
"""By data type: the ability that a device declares for it, and the engine's name for it as inference precision."""

_HINTS = {"latency": "LATENCY", "throughput": "THROUGHPUT"}


def options_of(abilities: frozenset[str], properties: frozenset[str]) -> tuple[Option, ...]:
    """Return the options of a device.

    Args:
        abilities: what the device declares as OPTIMIZATION_CAPABILITIES.
        properties: the names of the properties that it understands.
    """
    choices = tuple(dtype for dtype, (ability, _) in PRECISIONS.items() if ability in abilities) or ("float32",)
    threads = Option(
        name="threads", default=0, minimum=0, help="Threads that one program computes with; 0 leaves it to the engine."
    )
    return (
        Option(
            name="precision",
            default=choices[0],
            choices=choices,
            help="In which data type floats are computed; the first one unless said otherwise.",
        ),
        *((threads,) if "INFERENCE_NUM_THREADS" in properties else ()),
        Option(
            name="performance_hint",
            default="latency",
            choices=tuple(_HINTS),
            help="What the engine is to be fast at: one run, or many at once.",
        ),
        Option(
            name="switched_off",
            default=(),
            help="ONNX op types to refuse (Resize, Erf).",
            affects_speed=False,
        ),
    )


def properties_of(options: OptionValues, understood: frozenset[str]) -> Mapping[str, Any]:
    """Return the engine's properties for validated options, those alone that the device understands.

    In float32 the engine is told to keep to accuracy, which also forbids it to quantize by itself.
    """
    precision = str(options["precision"])
    exact = precision == "float32"
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[precision][1],
        "EXECUTION_MODE_HINT": "ACCURACY" if exact else "PERFORMANCE",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "PERFORMANCE_HINT": _HINTS[str(options["performance_hint"])],
    }
    if options.get("threads"):
        properties["INFERENCE_NUM_THREADS"] = str(options["threads"])
    return {name: value for name, value in properties.items() if name in understood}


def op_types_named(names: Collection[str]) -> frozenset[str]:
    """Return the op types that a person switches off.

    Raises:
        InvalidOptionError: one is not among those that the device takes.
    """
    if not names:
        return frozenset()
    from nnadapter.drivers.openvino.operators import OPERATORS  # few people switch op types off

    for name in names:
        if name not in OPERATORS:
            raise InvalidOptionError(
                f"option switched_off names {name!r}, none of the {len(OPERATORS)} op types that openvino takes; "
                f"{close_names(name, OPERATORS)}"
            )
    return frozenset(names)
