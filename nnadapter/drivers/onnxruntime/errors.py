"""Foreign errors become ours here and nowhere else: what ONNX Runtime raises, by a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from nnadapter.errors import (
    CancelledError,
    ExecutionError,
    InvalidInputError,
    InvalidModelError,
    ModelFileError,
    NNAdapterError,
)
from nnadapter.process.cache import remembered

TERMINATED = "Exiting due to terminate flag being set to true"
"""ONNX Runtime's words for a run that its run options stop; clients look for them."""
_Translations = tuple[tuple[tuple[type[Exception], ...], type[NNAdapterError]], ...]


@remembered(1)
def _translations() -> _Translations:
    """ONNX Runtime's exceptions and the ones they become, most specific first."""
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    model_errors = (native.InvalidGraph, native.InvalidProtobuf, native.NoModel, native.NotImplemented, native.Fail)
    return (
        ((native.NoSuchFile,), ModelFileError),
        ((native.InvalidArgument,), InvalidInputError),
        (model_errors, InvalidModelError),
        ((native.RuntimeException, native.EPFail, native.EngineError, native.ModelLoaded), ExecutionError),
        ((RuntimeError, ValueError, TypeError), InvalidInputError),
    )


@contextmanager
def translated(problem: str, advice: str, default: type[NNAdapterError] | None = None) -> Iterator[None]:
    """Turn what ONNX Runtime raises into an error of ours: `problem` failed, its own words, `advice`.

    Args:
        problem: the beginning of the sentence.
        advice: what to do next.
        default: the class to raise whatever the cause; by cause if None.
    """
    try:
        yield
    except Exception as error:
        ours = translation(error, problem, advice, default)
        if ours is error:
            raise
        raise ours from error


def translation(error: Exception, problem: str, advice: str, default: type[NNAdapterError] | None = None) -> Exception:
    """The error of ours that stands for `error`: itself if it is ours already, or in no row of the table."""
    if isinstance(error, NNAdapterError):
        return error
    if "terminate flag" in str(error):
        return CancelledError(f"{problem}: it was stopped by its run options, {TERMINATED}")
    if type(error).__name__ == "ModelLoadCanceled":  # older versions have no such class
        return CancelledError(f"{problem}: the load cancellation flag of its session options is set; clear it")
    kind = default or next((ours for theirs, ours in _translations() if isinstance(error, theirs)), None)
    if kind in (InvalidModelError, ExecutionError) and advice == "check the inputs" and _OF_INPUTS.search(str(error)):
        kind = InvalidInputError
    return error if kind is None else kind(f"{problem}: {brief(error)}; {advice}")


_OF_INPUTS = re.compile(
    "[Oo]ut of (bounds|range)|within bounds|must be (within|in |between|greater|positive|>=|non-negative)"
    "|must not be negative|should (not )?be greater|[Ii]nvalid (value|index|axis)"
    "|ScalesValidation|does not match|axis_tensor|not in valid range|smaller than|is not in|HandleNegativeAxis"
    "|AllocateRawInternal|[Oo]verflow"
    "|^(?:(?!while running).)*while running (AffineGrid|Col2Im|DFT|MaxRoiPool|Reshape|Resize|RoiAlign"
    "|Split|SplitToSequence|Squeeze|STFT|TensorScatter) "
)
"""Words of ONNX Runtime about indices, lengths, counts and sizes in the inputs, whatever the kind of its error.

An operator in a branch of If is left out: the branch may contradict itself.
"""


_POSITION = re.compile(r"\S*\.(?:cc|h):\d+ (?:[\w:*&<>~, ]+\([^()]*\)|\w+) ")
"""A file and line of ONNX Runtime's source, and the function there."""


def brief(error: BaseException) -> str:
    """Return ONNX Runtime's message on one line, without its source positions."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    if "[ONNXRuntimeError]" in text:
        # A provider's error stands inside ONNX Runtime's own; the innermost says what happened.
        text = text.rpartition("[ONNXRuntimeError]")[2].split(" : ", 3)[-1]
    return _POSITION.sub("", text) or type(error).__name__
