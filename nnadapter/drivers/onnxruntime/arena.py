"""One arena for all sessions of ONNX Runtime in this process that stand beside other devices.

By itself every session has an arena of its own, which keeps what a run needed between its nodes. The segments of a plan
run one after the other, so that a hundred of them would keep a hundred times what is needed at once, and each would
write into memory that is in no cache. ONNX Runtime has one allocator in an environment that sessions may use in place
of theirs; it is registered here once, with sizes that double, so that values that grow by one need few new pieces. Who
registered one for sessions of their own has this one in its place for those that they make later.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER, QUIET
from nnadapter.process.cache import remembered

USES_SHARED_ARENA = "session.use_env_allocators"
"""The entry of session options that says that a session uses the allocator of the environment."""
_SHRINKS = ("memory.enable_memory_arena_shrinkage", "cpu:0")
_DOUBLING = 0
_FIRST_BYTES = 1 << 20
SMALLEST_MODEL = bytes.fromhex(
    "080a3a3e0a100a017812017922084964656e746974791208736d616c6c6573745a0f0a0178120a0a08080112040a020801"
    "620f0a0179120a0a08080112040a02080142040a001011"
)
"""An ONNX model, y = Identity(x) of one float, of opset 17: who runs a compiled model may have no onnx to make it."""


@remembered(1)
def register_arena() -> None:
    """Make the arena that sessions with `USES_SHARED_ARENA` share; once in the process."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    sizes = {
        "arena_extend_strategy": _DOUBLING,
        "initial_chunk_size_bytes": _FIRST_BYTES,
        "initial_growth_chunk_size_bytes": _FIRST_BYTES,
    }
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(sizes))


def shrink_arena() -> None:
    """Give the pieces of the arena back in which nothing lies now.

    ONNX Runtime does so at the end of a run that asks for it: here of a session that does next to nothing, into memory
    of ours, so that nothing of its own stands in the way.
    """
    from nnadapter.process.real_onnxruntime import onnxruntime

    session = _smallest_session()
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(*_SHRINKS)
    binding, result = session.io_binding(), np.empty(1, np.float32)
    binding.bind_cpu_input("x", np.zeros(1, np.float32))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(result))
    session.run_with_iobinding(binding, options)


@remembered(1)
def _smallest_session() -> Any:
    from nnadapter.process.real_onnxruntime import onnxruntime

    register_arena()
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = QUIET, 1
    options.add_session_config_entry(USES_SHARED_ARENA, "1")
    return onnxruntime.InferenceSession(SMALLEST_MODEL, options, providers=[CPU_PROVIDER])
