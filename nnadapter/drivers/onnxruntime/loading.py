"""CPU segments out of a compiled model: bytes that ONNX Runtime loads, weights beside them, and no onnx."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from nnadapter.drivers.onnxruntime.errors import brief
from nnadapter.drivers.onnxruntime.pools import pool_permit
from nnadapter.drivers.onnxruntime.program import CpuProgram
from nnadapter.drivers.onnxruntime.sessions import open_session
from nnadapter.drivers.onnxruntime.weights import Loadable
from nnadapter.errors import CompilationError

if TYPE_CHECKING:
    import onnxruntime


def load_program(
    model: Loadable,
    session_options: onnxruntime.SessionOptions | None,
    *,
    spins: bool,
    single_threaded: bool,
    border: tuple[int, int],
    without: Sequence[str] = (),
) -> CpuProgram:
    """Return the program of a model at an opset that ONNX Runtime knows.

    Args:
        model: the model; with session options, all of it in one.
        session_options: ONNX Runtime's own.
        spins: its threads may spin: nothing else of the plan runs beside.
        single_threaded: threads gain it nothing, see `gains.threads_gain`; of one that spins that is not asked.
        border: how many inputs and outputs it has to have.
        without: see `open_session`.

    Raises:
        CompilationError: ONNX Runtime does not load it.
    """
    wants_pool = spins or not single_threaded
    permit = pool_permit() if wants_pool else None
    try:
        reopen = partial(
            open_session,
            model,
            session_options,
            has_pool=permit is not None,
            spins=spins,
            shares_arena=True,
            without=without,
        )
        notes: list[str] = []
        session = reopen(notes=notes)
        io_counts = len(session.get_inputs()), len(session.get_outputs())
        if io_counts != border:
            raise ValueError(
                f"it has {io_counts[0]} inputs and {io_counts[1]} outputs, expected {border[0]} and {border[1]}"
            )
        return CpuProgram(session, permit, model, wants_pool=wants_pool, reopen=reopen, notes=notes)
    except Exception as error:
        raise CompilationError(
            f"ONNX Runtime does not load a CPU segment of the compiled model: {brief(error)}; compile the model again "
            "with the ONNX Runtime that is installed here",
            device="cpu",
        ) from error
    finally:
        del permit  # somebody may keep the error, and this frame with it
