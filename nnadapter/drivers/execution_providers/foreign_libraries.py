"""Libraries that a provider built into ONNX Runtime needs, and that packages of their own bring: CUDA's, as wheels."""

from __future__ import annotations

import ctypes
import io
from contextlib import redirect_stdout, suppress
from pathlib import Path

from nnadapter.drivers.execution_providers.names import short_name
from nnadapter.process.cache import remembered
from nnadapter.process.real_onnxruntime import onnxruntime

_NOT_FOUND = ": cannot open shared object file"
"""What Linux's loader says behind the name of a library that it does not find (dl-load.c of glibc; musl says more)."""
_NEED_CUDA = frozenset(("CUDAExecutionProvider", "TensorrtExecutionProvider"))


def load_libraries(provider: str) -> None:
    """Load what a provider needs, where packages have it: the system's loader does not look there.

    What is missing is not said here: ONNX Runtime names it when a session is made.
    """
    if provider in _NEED_CUDA:
        _load_cuda()


def missing_library(provider: str, folder: Path | None = None) -> str:
    """Name the first library that the loader does not find for a provider that ONNX Runtime brings; empty if none.

    ONNX Runtime tells it in its log alone.

    Args:
        provider: which did not start.
        folder: where ONNX Runtime has its libraries.
    """
    named = f"libonnxruntime_providers_{short_name(provider).lower()}.so"
    try:
        ctypes.CDLL(str((folder or Path(onnxruntime.__file__).parent / "capi") / named))
    except OSError as error:
        missing, separator, _ = str(error).partition(_NOT_FOUND)
        return missing if separator and Path(missing).name != named else ""
    return ""


@remembered(1)
def _load_cuda() -> None:
    load = getattr(onnxruntime, "preload_dlls", None)
    if load is not None:
        with suppress(Exception), redirect_stdout(io.StringIO()):  # it prints what it does not find
            load()
