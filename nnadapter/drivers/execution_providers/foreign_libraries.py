"""Libraries that a provider built into ONNX Runtime needs, and that packages of their own bring: CUDA's, as wheels."""

from __future__ import annotations

import io
from contextlib import redirect_stdout, suppress

from nnadapter.process.cache import remembered
from nnadapter.process.real_onnxruntime import onnxruntime

_NEED_CUDA = frozenset(("CUDAExecutionProvider", "TensorrtExecutionProvider"))


def load_libraries(provider: str) -> None:
    """Load what a provider needs, where packages have it: the system's loader does not look there.

    What is missing is not said here: ONNX Runtime names it when a session is made.
    """
    if provider in _NEED_CUDA:
        _load_cuda()


@remembered(1)
def _load_cuda() -> None:
    load = getattr(onnxruntime, "preload_dlls", None)
    if load is not None:
        with suppress(Exception), redirect_stdout(io.StringIO()):  # it prints what it does not find
            load()
