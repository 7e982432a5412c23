"""Segments in a file: adapter IR or ONNX, with constants as parts of their own, which others may share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.compiled_models.messages import CONSTANT, IR, ONNX, Message, read_array, write_tensor
from nnadapter.drivers.capability import ModelForm
from nnadapter.errors import CompiledModelError, InvalidModelError
from nnadapter.ir.operand import Array

if TYPE_CHECKING:
    import onnx

    from nnadapter.drivers.onnxruntime.sessions import Loadable
    from nnadapter.files.container.format import Container, ContainerWriter
    from nnadapter.ir.model import Model
    from nnadapter.ir.symbolic_numbers import SymbolicTrace
    from nnadapter.onnx.separate_constants import SeparateTensor


def write_ir(message: Message, model: Model, inputs: Sequence[str], writer: ContainerWriter) -> None:
    """Write a segment in adapter IR, and fill a Segment message.

    One whose sizes are open is written at those that were traced, with the places where numbers of the trace stand.

    Raises:
        InvalidModelError: it holds what files have no form for.
    """
    from nnadapter.ir.protobuf.serialization import read_model, to_parts
    from nnadapter.ir.structure import numbers, with_numbers
    from nnadapter.ir.symbolic_numbers import SymbolicNumber, size_hint

    all_numbers = numbers(model)
    now = with_numbers(model, list(map(size_hint, all_numbers))) if model.has_dynamic_shapes else model
    contents, constants = to_parts(now)
    for data in constants.values():
        writer.add(CONSTANT, data)
    if model.has_dynamic_shapes:
        read = read_model(contents, constants.__getitem__, check_contents=False)
        assert numbers(read) == numbers(now), "numbers stand where they stood"
        places = [place for place, number in enumerate(all_numbers) if isinstance(number, SymbolicNumber)]
        message.places.extend(places)
        message.numbers.extend(all_numbers[place].number for place in places)
    message.form = ModelForm.IR.value
    message.inputs.extend(inputs)
    message.part = writer.add(IR, contents)


def write_onnx(
    message: Message, model: onnx.ModelProto, inputs: Sequence[str], without: Sequence[str], writer: ContainerWriter
) -> None:
    """Write a segment in ONNX, from which its constants are taken, and fill a Segment message."""
    from nnadapter.onnx.separate_constants import separated

    contents, constants = separated(model)
    for tensor in constants:
        write_tensor(message.constants.add(), tensor, writer)
    message.form = ModelForm.ONNX.value
    message.inputs.extend(inputs)
    message.part = writer.add(ONNX, contents)
    message.without.extend(without)


class Segments:
    """The segments of a file, read when somebody asks."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self._numbers = {part.sha256.hex(): number for number, part in enumerate(container.parts)}
        """Of parts, by what they hold."""

    def model(self, message: Message, trace: SymbolicTrace | None = None) -> Any:
        """Return a segment as the model that a driver compiles; `trace` is that of its plan, whose sizes are open.

        Raises:
            CompiledModelError: it is none.
        """
        if message.form == ModelForm.ONNX.value:
            contents, constants = self.onnx(message)
            from nnadapter.onnx.separate_constants import joined

            return joined(contents, [_tensor(name, array) for name, array in constants.items()])
        if message.form == ModelForm.IR.value:
            return self.open_model(message, trace) if message.places else self._ir(message)
        raise self.container.damaged(f"a segment has form {message.form!r}, expected 'ir' or 'onnx'")

    def onnx(self, message: Message) -> tuple[bytes, dict[str, Array]]:
        """Return a segment in ONNX as bytes, and its constants by name, which look into the file.

        Raises:
            CompiledModelError: it is none.
        """
        if message.form != ModelForm.ONNX.value:
            raise self.container.damaged(f"a segment has form {message.form!r}, expected 'onnx'")
        constants = {row.name: read_array(row, self.container) for row in message.constants}
        return bytes(self.container.contents(message.part, ONNX)), constants

    def open_model(self, message: Message, trace: SymbolicTrace | None) -> Model:
        """Return a segment in adapter IR whose sizes are numbers of a trace.

        Raises:
            CompiledModelError: it is none, or has other sizes than the trace.
        """
        if trace is None or message.form != ModelForm.IR.value:
            raise self.container.damaged("a segment has open sizes, and its plan or its form has not")
        from nnadapter.compiled_models.traces import traced_numbers  # segments of fixed sizes have none
        from nnadapter.ir.structure import numbers, with_numbers
        from nnadapter.ir.symbolic_numbers import size_hint
        from nnadapter.ir.verification import verify

        model = self._ir(message)
        plain = numbers(model)
        traced = traced_numbers(message, len(plain), trace, self.container)
        if any(plain[place] != size_hint(number) for place, number in traced.items()):
            raise self.container.damaged("a segment has other sizes than its plan")
        open_model = with_numbers(model, [traced.get(place, number) for place, number in enumerate(plain)])
        try:
            verify(open_model)
        except InvalidModelError as error:
            raise self.container.damaged(f"a segment does not hold for its sizes: {error}") from error
        return open_model

    def _ir(self, message: Message) -> Model:
        from nnadapter.ir.protobuf.serialization import read_model

        contents = bytes(self.container.contents(message.part, IR))
        try:
            return read_model(contents, self._constant, check_contents=False)
        except CompiledModelError:
            raise
        except InvalidModelError as error:
            raise self.container.damaged(f"a segment cannot be read: {error}") from error

    def _constant(self, digest: str) -> memoryview:
        if digest not in self._numbers:
            raise self.container.damaged(f"a constant of SHA-256 {digest!r} is not there")
        return self.container.contents(self._numbers[digest])


def _tensor(name: str, array: Array) -> SeparateTensor:
    from nnadapter.onnx.separate_constants import SeparateTensor

    return SeparateTensor(name, array.dtype.name, array.shape, array.reshape(-1).view(np.uint8))


def loadable_part(message: Message, segments: Segments, session_options: object) -> Loadable:
    """Return a segment as ONNX Runtime loads it: with weights beside it, unless a caller has session options.

    Those would keep the weights for other sessions.
    """
    from nnadapter.drivers.onnxruntime.sessions import Loadable
    from nnadapter.onnx.separate_constants import joined_bytes

    contents, constants = segments.onnx(message)
    return Loadable(contents, constants) if session_options is None else Loadable(joined_bytes(contents, constants))
