"""Process that converts Paddle models and compares them with Paddle's own predictor; its crashes end it alone."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.candidates.conversions import random_feed
from nnadapter.errors import InvalidModelError, NNAdapterError
from nnadapter.ir.operand import Array

_SHARES: Mapping[str, tuple[float, float]] = MappingProxyType({"float32": (1e-4, 1e-3), "float64": (1e-4, 1e-3)})
"""How far a real may be off, as a share of the largest one of its output, before it is said, and before it is refused.
Engines differ by a hundredth of the latter; between them lies what the converter approximates."""
_SHARES_OF_HALVES = (1e-2, 1e-2)
_NOTHING = 1e-6
"""How far a real may be off in any case."""
_MOST = 0.1
"""The share of integers that may differ: indices of values that are all but equal."""
_QUOTED = 200
_ERROR = re.compile(r"\w+Error: .*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What came of holding a converted model against Paddle's predictor; it agrees where both are empty."""

    wrong: str = ""
    """How it differs."""
    doubt: str = ""
    """Why nothing was compared, or how it differs by what may be an approximation."""


def compared(contents: bytes, structure: Path, parameters: Path, *, draws: bool) -> Comparison:
    """Return how a converted model compares with Paddle's results on seeded inputs.

    Nothing is compared where a model draws numbers, or where Paddle does not run it on inputs like these: random reals
    from 0 to 1, zeros and ones as integers, usual sizes where it leaves sizes open. Then reals from -1 to 1 are tried,
    where Paddle makes numbers of them: slopes and clips below 0 are seen in no other way.

    Args:
        contents: the converted model.
        structure: of the Paddle model.
        parameters: of it; the file need not exist.
        draws: whether it draws random numbers.

    Raises:
        Exception: Paddle cannot load it.
    """
    if draws:
        return Comparison(doubt="not held against Paddle, since it draws random numbers")
    predictor = _predictor(structure, parameters)
    try:
        feed = random_feed(contents)
    except InvalidModelError as error:
        return Comparison(wrong=f"it is no model: {error}")
    except NNAdapterError as error:
        return Comparison(doubt=f"not held against Paddle, since no inputs can be made up ({error})")
    try:
        expected = _predicted(predictor, feed)
    except Exception as error:  # noqa: BLE001  Paddle's are no RuntimeErrors; of values that do not fit, say
        return Comparison(
            doubt=f"not held against Paddle, which does not run it on inputs that are made up ({_short_error(error)})"
        )
    first = _run_and_held(contents, feed, expected)
    reals = {name: np.asarray(2 * array - 1, array.dtype) for name, array in feed.items() if array.dtype.kind == "f"}
    if first.wrong or not reals:
        return first
    second = _held_below_0(contents, predictor, {**feed, **reals})
    return Comparison(wrong=second.wrong, doubt=first.doubt or second.doubt)


def _held_below_0(contents: bytes, predictor: Any, feed: Mapping[str, Array]) -> Comparison:
    try:
        expected = _predicted(predictor, feed)
    except Exception:  # noqa: BLE001  such inputs may be none of the model's
        return Comparison()
    is_defined = all(np.isfinite(array).all() for array in expected.values() if array.dtype.kind == "f")
    return _run_and_held(contents, feed, expected) if is_defined else Comparison()


def _run_and_held(contents: bytes, feed: Mapping[str, Array], expected: Mapping[str, Array]) -> Comparison:
    try:
        actual = _computed(contents, feed)
    except Exception as error:  # noqa: BLE001  ONNX Runtime has classes of its own for each cause
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
    config.disable_mkldnn()  # which computes some of it in other types
    config.switch_ir_optim(False)
    return create_predictor(config)


def _predicted(predictor: Any, feed: Mapping[str, Array]) -> dict[str, Array]:
    for name in predictor.get_input_names():
        predictor.get_input_handle(name).copy_from_cpu(feed[name])
    predictor.run()
    return {name: predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()}


def _short_error(error: Exception) -> str:
    """What Paddle says, without the places in its code that it tells around it."""
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
    """How two arrays compare."""
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
        return Comparison(wrong="is not finite where it is in Paddle, or the other way round")
    off = float(np.abs(actual[finite] - expected[finite]).max(initial=0.0))
    size = float(np.abs(expected[finite]).max(initial=0.0))
    difference = f"differs by {off:.3g}, of values up to {size:.3g}"
    if off > largest * size + _NOTHING:
        return Comparison(wrong=difference)
    return Comparison(doubt=difference if off > warning_share * size + _NOTHING else "")


OPSET = 17
"""Asked for; the converter takes a higher one where an operation needs it."""

NO_ROOM = 74
"""The exit code where the folder's disk is full: then nothing can be told in a file."""
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


def main(name: str) -> None:
    """Convert what lies in the folder of that name."""
    folder = Path(name)
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    try:
        (folder / "model.onnx").write_bytes(_converted(folder))
    except Exception as error:  # noqa: BLE001  whatever they raise is said by the process that waits
        if isinstance(error, OSError) and error.errno in _FULL:
            sys.exit(NO_ROOM)
        _report_facts(folder, error=" ".join(f"{type(error).__name__}: {error}".split()))
        sys.exit(1)


def _converted(folder: Path) -> bytes:
    import paddle2onnx
    from paddle2onnx.utils import get_all_supported_operators_pir

    from nnadapter.paddle.model_files import check_whole
    from nnadapter.paddle.repair import (
        draws_numbers,
        mark,
        operations_of,
        repair_model,
        rewrite,
        unsupported_in,
        without_rounding,
    )

    structure, parameters = folder / "model.json", folder / "model.pdiparams"
    if parameters.exists():
        check_whole(parameters)
    outputs: list[str] = []
    if not structure.exists():
        structure, parameters, outputs = _translated(folder)
    program = json.loads(structure.read_bytes())
    operations = operations_of(program["program"])
    _report_facts(folder, unsupported=unsupported_in(operations, get_all_supported_operators_pir()))
    is_rewritten, quantizing = rewrite(program["program"]), mark(program["program"])
    converted = folder / "rewritten.json" if is_rewritten or quantizing else structure
    if converted != structure:
        converted.write_text(json.dumps(program))
    parameters_path = str(parameters) if parameters.exists() else ""
    # `enable_optimize` installs packages by itself.
    written = paddle2onnx.export(str(converted), parameters_path, None, OPSET, enable_optimize=False)
    if not written:
        raise ValueError("it gave no model")
    contents = repair_model(written, outputs, quantizing)
    original = folder / ("model.pdmodel" if outputs else "model.json")
    comparison = compared(
        without_rounding(contents) if quantizing else contents,
        original,
        folder / "model.pdiparams",
        draws=draws_numbers(program["program"]),
    )
    _report_facts(folder, wrong=comparison.wrong, doubt=comparison.doubt)
    if comparison.wrong:
        sys.exit(1)
    return contents


def _translated(folder: Path) -> tuple[Path, Path, list[str]]:
    """A program of Paddle 2 as one of Paddle 3: its files, and the names that its outputs had."""
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
    """Wait for the end of standard input, which the other process holds open."""
    os.read(0, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
