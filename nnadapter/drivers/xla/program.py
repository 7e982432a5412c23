"""A compiled segment, and its serialized form: an envelope around what `jax.export` writes, and the constants."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.drivers.envelope import ADVICE, PREFIX_BYTES, Envelope
from nnadapter.drivers.interface import Compatibility, Execution, Program
from nnadapter.drivers.xla.compiling import Compiled, compiled_again
from nnadapter.drivers.xla.donating import Donating
from nnadapter.drivers.xla.engine import own_settings
from nnadapter.drivers.xla.execution import XlaExecution
from nnadapter.errors import CompilationError, IncompatibleProgramError
from nnadapter.ir.operand import Array, array_type_of

Seal = Mapping[str, str]
"""What a program must have been compiled with, by name."""

_ENVELOPE = Envelope(magic=b"nna-xla\n", version=1)
_ALIGNMENT = 64
"""Of constants, so that those of a file are used where they are."""


class XlaProgram(Program):
    """What XLA made of a segment, and its constants."""

    def __init__(self, compiled: Compiled, seal: Seal) -> None:
        self._compiled, self._seal = compiled, seal
        self._donating = Donating(compiled)

    def create_execution(self) -> Execution:
        """See `Program.create_execution`: XLA allocates as it runs, so that many threads may share one."""
        return XlaExecution(self._compiled, self._donating)

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`: constants, code, and what one run works in."""
        said = self._compiled.executable.memory_analysis()
        held = sum(array.nbytes for array in self._compiled.constants)
        return int(held + said.temp_size_in_bytes + said.generated_code_size_in_bytes)

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`: what a run works in is freed behind it."""
        return 0

    def serialize(self) -> bytes:
        """See `Program.serialize`: the function as XLA was given it, and not what it made of it."""
        with own_settings():
            arrays = [np.asarray(value) for value in self._compiled.constants]
        constants = [{"dtype": array.dtype.name, "shape": array.shape} for array in arrays]
        header = {
            "seal": dict(self._seal),
            "constants": constants,
            "results": self._compiled.results,
            "exported": len(self._compiled.exported),
        }
        written = json.dumps(header).encode()
        written += b" " * (-(PREFIX_BYTES + len(written)) % _ALIGNMENT)
        return _ENVELOPE.close(written, [*_padded(arrays), self._compiled.exported])

    def close(self) -> None:
        """See `Program.close`."""
        del self._compiled, self._donating


def _padded(arrays: Sequence[Array]) -> Iterator[bytes | memoryview]:
    for array in arrays:
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        yield bytes(-array.nbytes % _ALIGNMENT)


def compatibility(blob: memoryview, seal: Seal) -> Compatibility:
    """Return what a program is to a context of this seal, by its header."""
    header = _ENVELOPE.header_of(blob)
    try:
        recorded = None if header is None else dict(json.loads(header)["seal"])
    except (ValueError, KeyError, TypeError):
        return Compatibility.RECOMPILE
    if recorded is None or recorded.get("platform") != seal["platform"]:
        return Compatibility.NO
    return Compatibility.SAME if recorded == seal else Compatibility.RECOMPILE


def deserialized(blob: bytes | memoryview, seal: Seal, device: Any, *, is_checked: bool = False) -> XlaProgram:
    """Return the program that was written as `blob`; XLA compiles it again.

    Args:
        blob: the bytes.
        seal: what it must have been compiled with.
        device: JAX's, that it is to run on.
        is_checked: they are not damaged, see `Envelope.open`.

    Raises:
        IncompatibleProgramError: it is damaged, or was compiled by another JAX, for another platform or with other
            options than `seal` says.
    """
    header, contents = _ENVELOPE.open(blob, is_checked=is_checked)
    try:
        said = json.loads(header)
        recorded, results, exported_bytes = dict(said["seal"]), said["results"], int(said["exported"])
        arrays = list(_constants(said["constants"], contents[: len(contents) - exported_bytes]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IncompatibleProgramError(f"the program's header is damaged; {ADVICE}") from error
    for name, value in seal.items():
        if recorded.get(name) != value:
            raise IncompatibleProgramError(
                f"the program was compiled with {name} {recorded.get(name)!r}, here is {value!r}; {ADVICE}"
            )
    try:
        exported = bytes(contents[len(contents) - exported_bytes :])
        return XlaProgram(compiled_again(exported, arrays, results, device), seal)
    except CompilationError as error:
        raise IncompatibleProgramError(f"JAX does not take the program back ({error}); {ADVICE}") from error


def _constants(rows: Sequence[Mapping[str, Any]], contents: memoryview) -> Iterator[Array]:
    """The constants, where they lie.

    Raises:
        ValueError: there are fewer bytes than they have.
    """
    begin = 0
    for row in rows:
        dtype, shape = array_type_of(row["dtype"]), tuple(map(int, row["shape"]))
        count = int(np.prod(shape, dtype=np.int64))
        yield np.frombuffer(contents, dtype, count, begin).reshape(shape) if count else np.zeros(shape, dtype)
        begin += -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
