"""A converted model against Paddle's own predictor, in the process that converts: the converter is sometimes wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nnadapter.errors import NNAdapterError
from nnadapter.ir.operand import Array
from nnadapter.offering.feeds import random_feed

_LARGEST = 1e-2
"""How far a real may be off, as a share of the largest one of its output. What is converted wrongly is far beyond, and
engines differ by a thousandth of this."""
_MOST = 0.1
"""The share of integers that may differ: indices of values that are all but equal."""
_DRAWING = frozenset({"bernoulli", "dropout", "gaussian", "multinomial", "poisson", "randint", "uniform"})
"""Operations whose results nobody foretells."""


def difference(contents: bytes, structure: Path, parameters: Path, operations: Collection[str]) -> str:
    """Return how a converted model differs from Paddle's results on seeded inputs; empty if it does not.

    Nothing is compared where a model draws numbers, or where Paddle does not run it on inputs like these: random reals,
    zeros and ones as integers, usual sizes where it leaves sizes open.

    Args:
        contents: the converted model.
        structure: of the Paddle model.
        parameters: of it; the file need not exist.
        operations: names of its operations.
    """
    if not _DRAWING.isdisjoint(operations):
        return ""
    try:
        feed = random_feed(contents)
        expected = _predicted(structure, parameters, feed)
    except (NNAdapterError, RuntimeError, ValueError, TypeError, KeyError, IndexError, OSError):
        return ""  # of sizes that do not fit, say; whoever runs the model gives others
    try:
        found = _computed(contents, feed)
    except Exception as error:  # noqa: BLE001  ONNX Runtime has classes of its own for each cause
        return f"it does not run: {' '.join(str(error).split())}"
    for name, wanted in expected.items():
        if name not in found:
            return f"it has no output {name!r}"
        why = _apart(np.asarray(found[name]), wanted)
        if why:
            return f"output {name!r} {why}"
    return ""


def _predicted(structure: Path, parameters: Path, feed: Mapping[str, Array]) -> dict[str, Array]:
    from paddle.inference import Config, create_predictor

    config = Config(str(structure), str(parameters) if parameters.exists() else "")
    config.disable_glog_info()
    config.disable_mkldnn()  # which computes some of it in other types
    config.switch_ir_optim(False)
    predictor = create_predictor(config)
    for name in predictor.get_input_names():
        predictor.get_input_handle(name).copy_from_cpu(feed[name])
    predictor.run()
    return {name: predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()}


def _computed(contents: bytes, feed: Mapping[str, Array]) -> dict[str, Any]:
    from nnadapter.process.real_onnxruntime import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feed)), strict=True))


def _apart(found: Array, wanted: Array) -> str:
    """How two arrays differ; empty if they do not."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"is {found.dtype.name}{list(found.shape)}, and {wanted.dtype.name}{list(wanted.shape)} in Paddle"
    if not wanted.size:
        return ""
    if wanted.dtype.kind != "f":
        share = float(np.mean(found != wanted))
        return f"differs in {share:.0%} of its elements" if share > _MOST else ""
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    if (np.isfinite(found) != np.isfinite(wanted)).any():
        return "is not finite where it is in Paddle, or the other way round"
    finite = np.isfinite(wanted)
    off = float(np.abs(found[finite] - wanted[finite]).max(initial=0.0))
    limit = _LARGEST * float(np.abs(wanted[finite]).max(initial=0.0)) + 1e-6
    return f"differs by {off:.3g}, of values up to {limit / _LARGEST:.3g}" if off > limit else ""
