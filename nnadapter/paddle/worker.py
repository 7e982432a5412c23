"""Process that converts a Paddle model and compares it with Paddle's predictor, separate because it may crash."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.candidates.random_feeds import random_feed
from nnadapter.errors import InvalidModelError, NNAdapterError
from nnadapter.ir.operand import Array
from nnadapter.records import dataclass

_SHARES: Mapping[str, tuple[float, float]] = MappingProxyType({"float32": (1e-4, 1e-3), "float64": (1e-4, 1e-3)})
"""Data type -> (difference for a warning, difference for a refusal), relative to the largest value. Approximations
cause differences in between.
"""
_SHARES_OF_HALVES = (1e-2, 1e-2)
_NOTHING = 1e-6
_MOST = 0.1
_QUOTED = 200
_ERROR = re.compile(r"\w+Error: .*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of a comparison with Paddle; both fields are empty on agreement."""

    wrong: str = ""
    doubt: str = ""
    """Possible approximation, or reason why nothing was compared."""


def compared(contents: bytes, structure: Path, parameters: Path, *, draws: bool) -> Comparison:
    """Compare a converted model with Paddle on seeded inputs: real numbers from 0 to 1, then from -1 to 1.

    Negative inputs test slopes and clips below 0. Nothing is compared for models with random numbers (`draws`), or if
    Paddle fails on the inputs. Raises Paddle's errors if Paddle cannot load the model.
    """
    if draws:
        return Comparison(doubt="not compared with Paddle, because it draws random numbers")
    predictor = _predictor(structure, parameters)
    try:
        feed = random_feed(contents)
    except InvalidModelError as error:
        return Comparison(wrong=f"it is not a model: {error}")
    except NNAdapterError as error:
        return Comparison(doubt=f"not compared with Paddle, because no inputs can be generated ({error})")
    try:
        expected = _predicted(predictor, feed)
    except Exception as error:  # noqa: BLE001  Paddle raises other types than RuntimeError
        return Comparison(doubt=f"not compared with Paddle, which fails on generated inputs ({_short_error(error)})")
    first = _run_and_held(contents, feed, expected)
    reals = {name: np.asarray(2 * array - 1, array.dtype) for name, array in feed.items() if array.dtype.kind == "f"}
    if first.wrong or not reals:
        return first
    second = _held_below_0(contents, predictor, {**feed, **reals})
    return Comparison(wrong=second.wrong, doubt=first.doubt or second.doubt)


def _held_below_0(contents: bytes, predictor: Any, feed: Mapping[str, Array]) -> Comparison:
    try:
        expected = _predicted(predictor, feed)
    except Exception:  # noqa: BLE001  such inputs may be invalid for the model
        return Comparison()
    is_defined = all(np.isfinite(array).all() for array in expected.values() if array.dtype.kind == "f")
    return _run_and_held(contents, feed, expected) if is_defined else Comparison()


def _run_and_held(contents: bytes, feed: Mapping[str, Array], expected: Mapping[str, Array]) -> Comparison:
    try:
        actual = _computed(contents, feed)
    except Exception as error:  # noqa: BLE001  ONNX Runtime raises a type for each cause
        return Comparison(wrong=f"it does not run: {' '.join(str(error).split())}")
    return _compare_outputs(actual, expected)


def _compare_outputs(actual: Mapping[str, Any], expected: Mapping[str, Array]) -> Comparison:
    doubt = ""
    for name, expected_array in expected.items():
        if name not in actual:
            return Comparison(wrong=f"it has no output {name!r}")
        each = _array_difference(np.asarray(actual[name]), expected_array)
        if each.wrong:
            return Comparison(wrong=f"output {name!r} {each.wrong}")
        if each.doubt:
            doubt = doubt or f"output {name!r} {each.doubt}"
    return Comparison(doubt=doubt)


def _predictor(structure: Path, parameters: Path) -> Any:
    from paddle.inference import Config, create_predictor

    config = Config(str(structure), str(parameters) if parameters.exists() else "")
    config.disable_glog_info()
    config.disable_mkldnn()  # computes in other data types
    config.switch_ir_optim(False)
    return create_predictor(config)


def _predicted(predictor: Any, feed: Mapping[str, Array]) -> dict[str, Array]:
    for name in predictor.get_input_names():
        predictor.get_input_handle(name).copy_from_cpu(feed[name])
    predictor.run()
    return {name: predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()}


def _short_error(error: Exception) -> str:
    match = _ERROR.search(str(error))
    return match[0] if match else f"{type(error).__name__}: {' '.join(str(error).split())[:_QUOTED]}"


def _computed(contents: bytes, feed: Mapping[str, Array]) -> dict[str, Any]:
    from nnadapter.process.real_onnxruntime import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feed)), strict=True))


def _array_difference(actual: Array, expected: Array) -> Comparison:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        form = f"{expected.dtype.name}{list(expected.shape)}"
        return Comparison(wrong=f"is {actual.dtype.name}{list(actual.shape)}, and {form} in Paddle")
    if not expected.size:
        return Comparison()
    if expected.dtype.kind != "f":
        differing = float(np.mean(actual != expected))
        return Comparison(wrong=f"differs in {differing:.0%} of its elements" if differing > _MOST else "")
    warning_share, largest = _SHARES.get(expected.dtype.name, _SHARES_OF_HALVES)
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    if (np.isfinite(actual) != finite).any() or not np.array_equal(actual[~finite], expected[~finite], equal_nan=True):
        return Comparison(wrong="is not finite where Paddle's result is, or vice versa")
    off = float(np.abs(actual[finite] - expected[finite]).max(initial=0.0))
    size = float(np.abs(expected[finite]).max(initial=0.0))
    difference = f"differs by {off:.3g}, of values up to {size:.3g}"
    if off > largest * size + _NOTHING:
        return Comparison(wrong=difference)
    return Comparison(doubt=difference if off > warning_share * size + _NOTHING else "")


OPSET = 17
"""Requested opset; some operations need a higher one."""

NO_ROOM = 74
"""Exit code for a full disk, on which no file can report the error."""
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


def main(name: str) -> None:
    """Convert the model in the folder `name`, and write `model.onnx` there."""
    folder = Path(name)
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    try:
        (folder / "model.onnx").write_bytes(_converted(folder))
    except Exception as error:  # noqa: BLE001  the parent process reports it
        if isinstance(error, OSError) and error.errno in _FULL:
            sys.exit(NO_ROOM)
        _report_facts(folder, error=" ".join(f"{type(error).__name__}: {error}".split()))
        sys.exit(1)


def _converted(folder: Path) -> bytes:
    import paddle2onnx
    from paddle2onnx.utils import get_all_supported_operators_pir

    import nnadapter.paddle.repair as repair
    from nnadapter.paddle.model_files import check_whole

    structure, parameters = folder / "model.json", folder / "model.pdiparams"
    if parameters.exists():
        check_whole(parameters)
    outputs: list[str] = []
    if not structure.exists():
        structure, parameters, outputs = _translated(folder)
    program = json.loads(structure.read_bytes())
    operations = repair.operations_of(program["program"])
    _report_facts(folder, unsupported=repair.unsupported_in(operations, get_all_supported_operators_pir()))
    is_rewritten, quantizing = repair.rewrite(program["program"]), repair.mark(program["program"])
    converted = folder / "rewritten.json" if is_rewritten or quantizing else structure
    if converted != structure:
        converted.write_text(json.dumps(program))
    parameters_path = str(parameters) if parameters.exists() else ""
    # `enable_optimize` would install packages.
    written = paddle2onnx.export(str(converted), parameters_path, None, OPSET, enable_optimize=False)
    if not written:
        raise ValueError("paddle2onnx returned no model")
    contents = repair.repair_model(written, outputs, quantizing)
    original = folder / ("model.pdmodel" if outputs else "model.json")
    comparison = compared(
        repair.without_rounding(contents) if quantizing else contents,
        original,
        folder / "model.pdiparams",
        draws=repair.draws_numbers(program["program"]),
    )
    _report_facts(folder, wrong=comparison.wrong, doubt=comparison.doubt)
    if comparison.wrong:
        sys.exit(1)
    return contents


def _translated(folder: Path) -> tuple[Path, Path, list[str]]:
    import paddle
    from paddle2onnx import load_parameter, save_program

    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.pir_utils.OldIrGuard():
        program, _, targets = paddle.static.load_inference_model(str(folder / "model"), executor)
    translated = paddle.pir.translate_to_pir(program.desc)
    load_parameter(translated)
    save_program(translated, str(folder / "translated"))
    return folder / "translated.json", folder / "translated.pdiparams", [target.name for target in targets]


def _report_facts(folder: Path, **facts: object) -> None:
    (folder / "told.json").write_text(json.dumps(facts))


def _end_with_parent(folder: Path) -> None:
    os.read(0, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
