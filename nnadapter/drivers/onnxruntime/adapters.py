"""Feeds for the parameters of LoRA adapters in run options.

ONNX Runtime does not list the parameters, but feeds them to runs. So a model that returns its
inputs reveals the parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.drivers.onnxruntime.failures import translated
from nnadapter.drivers.onnxruntime.values import FLOAT, array_of, inner_run, model_of_one, tiny_session_options
from nnadapter.errors import FallbackWarning
from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER
from nnadapter.onnx.signature import type_name
from nnadapter.process.resources import memoize
from partition.graph import ELEMENT_TYPE_OF_DTYPE

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.ir.operand import Array
    from nnadapter.onnx.signature import NodeArg

_FEED = {"a": np.zeros(0, np.float32)}
_RETURNED = "/returned"
_ADVICE = "activate adapters of this model"


def has_adapters(options: onnxruntime.RunOptions) -> bool:
    """Return whether run options activate LoRA adapters that have parameters."""
    try:
        if options.terminate:
            return False
    except AttributeError:
        raise TypeError(f"run options are an onnxruntime.RunOptions, got {type(options).__name__}") from None
    try:
        _run_without_parameters()(["c"], _FEED, options)
    except Exception:  # noqa: BLE001  nothing but adapters can fail here
        return not options.terminate
    return False


def adapter_parameters(options: onnxruntime.RunOptions, inputs: Iterable[NodeArg]) -> dict[str, Array]:
    """Return the parameters of active adapters by input name.

    Raises:
        InvalidInputError: a parameter fits no input.
    """
    element_types = {type_name(dtype): element for dtype, element in ELEMENT_TYPE_OF_DTYPE.items() if dtype != "string"}
    types = {node_arg.name: element_types[node_arg.type] for node_arg in inputs if node_arg.type in element_types}
    session = _session(_model_of(types))
    outputs = [value.name for value in session.get_outputs()]
    with translated("the adapters of the run options do not fit the model", _ADVICE):
        results = session.run_with_ort_values(outputs, {}, options)
    by_name = {name.removesuffix(_RETURNED): value for name, value in zip(outputs, results, strict=True)}
    return {name: array_of(value) for name, value in by_name.items() if value.shape() != [0]}


def warn_of_adapters(options: onnxruntime.RunOptions) -> None:
    """Warn if run options activate LoRA adapters, because runs with bound values ignore them."""
    if has_adapters(options):
        warnings.warn(
            "the run options activate adapters, which have no effect on run_with_iobinding; use run or "
            "run_with_ort_values, or bind the parameters",
            FallbackWarning,
            stacklevel=2,
        )


@memoize(1)
def _run_without_parameters() -> Any:
    return inner_run(_session(model_of_one(b"Identity", 1, FLOAT, (0,))))


def _session(model: bytes) -> onnxruntime.InferenceSession:
    from nnadapter.process.real_onnxruntime import onnxruntime

    return onnxruntime.InferenceSession(model, tiny_session_options(), providers=[CPU_PROVIDER])


def _model_of(types: Mapping[str, int]) -> bytes:
    from onnx import helper

    returned = {f"{name}{_RETURNED}": type_ for name, type_ in types.items()}
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], [result]) for name, result in zip(types, returned, strict=True)],
        "adapters",
        [helper.make_tensor_value_info(name, type_, None) for name, type_ in types.items()],
        [helper.make_tensor_value_info(name, type_, None) for name, type_ in returned.items()],
        [helper.make_tensor(name, type_, [0], []) for name, type_ in types.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(model.SerializeToString())
