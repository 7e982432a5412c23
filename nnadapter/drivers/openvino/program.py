"""A compiled model, and its serialized form: an envelope around the blob that the engine exports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nnadapter.drivers.envelope import ADVICE, Envelope
from nnadapter.drivers.interface import Compatibility, Execution, Program
from nnadapter.drivers.openvino.engine import core, translated
from nnadapter.drivers.openvino.execution import OpenvinoExecution
from nnadapter.drivers.openvino.footprint import footprint_of
from nnadapter.drivers.openvino.ports import Ports, fits, outputs_of, ports_from
from nnadapter.errors import ExecutionError, IncompatibleProgramError

_ENVELOPE = Envelope(magic=b"nna-ov\r\n", version=1)


class OpenvinoProgram(Program):
    """One compiled model of the engine."""

    def __init__(
        self, compiled: Any, signature: Ports, seal: Mapping[str, Any], weight_bytes: int, copied: int
    ) -> None:
        """Hold a compiled model.

        Args:
            compiled: the engine's.
            signature: its ports.
            seal: what it was compiled with, as plain data.
            weight_bytes: of the model that it was compiled from.
            copied: how many of them the engine has a copy of.
        """
        self._compiled = compiled
        self._signature = signature
        self._seal = dict(seal)
        self._weight_bytes, self._copied_bytes = weight_bytes, copied
        self._footprint = footprint_of(compiled)
        self._is_open = any(None in output.shape for output in signature.outputs)

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`, and `footprint`; where sizes are open, as at those of the last run."""
        if self._is_open:
            self._footprint = footprint_of(self._compiled)
        return self._footprint.held_bytes(self._copied_bytes)

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`: requests take turns in one working memory."""
        return 0

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        with translated("OpenVINO made no request for a run", "close other programs", ExecutionError):
            return OpenvinoExecution(self._compiled.create_infer_request(), self._signature)

    def serialize(self) -> bytes:
        """See `Program.serialize`."""
        with translated("OpenVINO did not export the program", "run it without keeping it", ExecutionError):
            contents = self._compiled.export_model().getvalue()
        header = {"seal": self._seal, "signature": self._signature.to_dict(), "weight_bytes": self._weight_bytes}
        return _ENVELOPE.close(json.dumps(header).encode(), [contents])

    def close(self) -> None:
        """See `Program.close`."""
        del self._compiled


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


def deserialized(blob: bytes | memoryview, seal: Mapping[str, Any]) -> OpenvinoProgram:
    """Return the program that was written as `blob`.

    Raises:
        IncompatibleProgramError: it is damaged, or was compiled by another engine, for another device or with other
            options than `seal` says.
    """
    header, contents = _ENVELOPE.open(blob)
    try:
        said = json.loads(header)
        recorded_seal, signature, weight_bytes = (
            said["seal"],
            ports_from(said["signature"]),
            int(said["weight_bytes"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise IncompatibleProgramError(f"the program's header is damaged; {ADVICE}") from error
    for name, value in seal.items():
        other = recorded_seal.get(name) if isinstance(recorded_seal, dict) else None
        if other != value:
            raise IncompatibleProgramError(
                f"the program was compiled for {name} {other!r}, here is {value!r}; {ADVICE}"
            )
    with translated("OpenVINO does not take the program back", ADVICE, IncompatibleProgramError):
        compiled = core().import_model(bytes(contents), seal["device"], dict(seal["properties"]))
        if not fits(signature, compiled.inputs, outputs_of(compiled)):
            raise IncompatibleProgramError(f"the program has other inputs and outputs than its header says; {ADVICE}")
    return OpenvinoProgram(compiled, signature, seal, weight_bytes, weight_bytes)
