"""A compiled model, and its serialized form: an envelope around the blob that the engine exports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnadapter.drivers.envelope import ADVICE, PREFIX_BYTES, Envelope
from nnadapter.drivers.interface import Compatibility, Execution, Program
from nnadapter.drivers.openvino.engine import core, module, refuse_forked, translated
from nnadapter.drivers.openvino.execution import OpenvinoExecution
from nnadapter.drivers.openvino.footprint import Footprint, footprint_of
from nnadapter.drivers.openvino.living import RecoverableModel
from nnadapter.drivers.openvino.ports import Ports, fits, outputs_of, ports_from
from nnadapter.drivers.openvino.sharing import shareable
from nnadapter.errors import ExecutionError, IncompatibleProgramError

_ENVELOPE = Envelope(magic=b"nna-ov\r\n", version=3)
"""Of the first two versions were programs that are not read as they were written."""
_ALIGNMENT = 64
"""Of what the engine wrote, behind the header: it may look into it where it lies."""


class OpenvinoProgram(Program):
    """One compiled model of the engine."""

    def __init__(
        self,
        compiled: Any,
        signature: Ports,
        seal: Mapping[str, Any],
        weight_bytes: int,
        copied: int,
        read_from: object = None,
        contents: memoryview | None = None,
        *,
        is_kept: bool = True,
        notes: Sequence[str] = (),
    ) -> None:
        """Hold a compiled model.

        Args:
            compiled: the engine's.
            signature: its ports.
            seal: what it was compiled with, as plain data.
            weight_bytes: of the model that it was compiled from.
            copied: how many of them the engine has a copy of.
            read_from: memory that the engine may look into as long as the model lives.
            contents: what it was read from, if it was read.
            is_kept: the engine reads it again as it writes it (`written.py`).
            notes: for the report.
        """
        self.notes = list(notes)
        self._seal = dict(seal)
        read = partial(_imported, seal=self._seal) if is_kept else None
        takes_turns = self._seal["properties"].get("PERFORMANCE_HINT") == "LATENCY"
        self._living = RecoverableModel(compiled, read_from, read, contents, takes_turns=takes_turns)
        self._signature = signature
        self._weight_bytes, self._copied_bytes = weight_bytes, copied
        self._footprint: Footprint | None = None
        self._is_open = any(None in output.shape for output in signature.outputs)
        self._may_have_run = False

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`, and `footprint`; where sizes are open, as at those of the last run."""
        self._living = self._living.known()  # what failed goes
        if self._footprint is None or (self._is_open and self._may_have_run):
            self._footprint = footprint_of(self._living.compiled)
        return self._footprint.held_bytes(self._copied_bytes)

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`: requests take turns in one working memory."""
        return 0

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        self._may_have_run = True
        with translated("OpenVINO made no request for a run", "close other programs", ExecutionError):
            return OpenvinoExecution(self._living, self._signature)

    def serialize(self) -> bytes | None:
        """See `Program.serialize`."""
        with translated("OpenVINO did not export the program", "run it without keeping it", ExecutionError):
            contents = self._living.written()
        if contents is None:
            return None
        header: dict[str, Any] = {"seal": self._seal, "signature": self._signature.to_dict()}
        header |= {"weight_bytes": self._weight_bytes, "notes": self.notes}
        written = json.dumps(header).encode()
        return _ENVELOPE.close(written + b" " * (-(PREFIX_BYTES + len(written)) % _ALIGNMENT), [contents])

    def close(self) -> None:
        """See `Program.close`."""
        del self._living


def compatibility(blob: memoryview, seal: Mapping[str, Any]) -> Compatibility:
    """Return what a program is to a context of this seal, by its header."""
    header = _ENVELOPE.header_of(blob)
    try:
        recorded = None if header is None else json.loads(header)["seal"]
        device = None if recorded is None else recorded["device"]
    except (ValueError, KeyError, TypeError):
        return Compatibility.RECOMPILE
    if recorded is None or device != seal["device"]:
        return Compatibility.NO
    same = all(recorded.get(name) == value for name, value in seal.items())
    return Compatibility.SAME if same else Compatibility.RECOMPILE


def deserialized(blob: bytes | memoryview, seal: Mapping[str, Any], *, is_checked: bool = False) -> OpenvinoProgram:
    """Return the program that was written as `blob`.

    Args:
        blob: the bytes.
        seal: what it must have been compiled with.
        is_checked: they are not damaged, see `Envelope.open`.

    Raises:
        IncompatibleProgramError: it is damaged, or was compiled by another engine, for another device or with other
            options than `seal` says.
    """
    header, contents = _ENVELOPE.open(blob, is_checked=is_checked)
    try:
        fields = json.loads(header)
        recorded_seal, signature, weight_bytes = (
            fields["seal"],
            ports_from(fields["signature"]),
            int(fields["weight_bytes"]),
        )
        notes = list(map(str, fields.get("notes", ())))
    except (ValueError, KeyError, TypeError) as error:
        raise IncompatibleProgramError(f"the program's header is damaged; {ADVICE}") from error
    for name, value in seal.items():
        other = recorded_seal.get(name) if isinstance(recorded_seal, dict) else None
        if other != value:
            raise IncompatibleProgramError(
                f"the program was compiled for {name} {other!r}, here is {value!r}; {ADVICE}"
            )
    refuse_forked(str(seal["device"]))
    with translated("OpenVINO does not take the program back", ADVICE, IncompatibleProgramError):
        compiled, tensor = _imported(contents, seal)
        if not fits(signature, compiled.inputs, outputs_of(compiled)):
            raise IncompatibleProgramError(f"the program has other inputs and outputs than its header says; {ADVICE}")
    copied_bytes = weight_bytes if tensor is None else 0
    return OpenvinoProgram(compiled, signature, seal, weight_bytes, copied_bytes, tensor, contents, notes=notes)


def _imported(contents: memoryview, seal: Mapping[str, Any]) -> tuple[Any, Any]:
    """What the engine exported, loaded again; and the tensor that it looks into, or None where it has copies."""
    around = seal["device"], dict(seal["properties"])
    tensor = module().Tensor(shareable(np.frombuffer(contents, np.uint8)), shared_memory=True)
    try:
        return core().import_model(tensor, *around), tensor
    except TypeError:  # engines that take bytes alone, which they copy
        return core().import_model(bytes(contents), *around), None
