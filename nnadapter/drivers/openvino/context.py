"""A device with options: verdicts of tables and engine, programs compiled and deserialized."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.capability import OptionValues
from nnadapter.drivers.interface import Admission, Compatibility, Context, Program
from nnadapter.drivers.openvino.engine import version
from nnadapter.drivers.openvino.options import op_types_named, properties_of
from nnadapter.drivers.openvino.program import compatibility, deserialized
from partition.verdict import Verdict

if TYPE_CHECKING:
    import onnx

    from nnadapter.drivers.openvino.asking import Asker


class OpenvinoContext(Context):
    """Loads programs; what has to do with ONNX models is imported when one is judged or compiled."""

    def __init__(self, device: str, options: OptionValues, understood: frozenset[str]) -> None:
        self._device = device
        self._properties = properties_of(options, understood)
        self._switched_off = op_types_named(options["switched_off"])  # type: ignore[arg-type]

    def supported(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """See `Context.supported`: the tables first, then the engine's own query, once for nodes that are alike."""
        return self._asker.supported(model)

    def admit(self, model: onnx.ModelProto) -> Admission:
        """See `Context.admit`: what was taken node by node; but with open sizes, not all of it is."""
        return self._asker.admit(model)

    def compile(self, model: onnx.ModelProto) -> Program:
        """See `Context.compile`.

        Raises:
            CompilationError: the engine does not take the segment; with the nodes to blame, where there are some.
        """
        return self._asker.compile(model, self._seal())

    def deserialize(self, blob: bytes) -> Program:
        """See `Context.deserialize`."""
        return deserialized(blob, self._seal())

    def deserialize_view(self, blob: memoryview) -> Program:
        """See `Context.deserialize_view`: the engine reads where the file is mapped."""
        return deserialized(blob, self._seal(), is_checked=True)

    def check_blob(self, blob: memoryview) -> Compatibility:
        """See `Context.check_blob`: engine, device and properties have to be the same."""
        return compatibility(blob, self._seal())

    def _seal(self) -> dict[str, Any]:
        """What a program must have been compiled with to run here."""
        return {"device": self._device, "engine": version(), "properties": dict(self._properties)}

    @cached_property
    def _asker(self) -> Asker:
        from nnadapter.drivers.openvino.asking import Asker

        return Asker(self._device, self._properties, self._switched_off)
