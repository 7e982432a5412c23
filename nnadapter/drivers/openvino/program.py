"""Compiled models of OpenVINO: requests, recovery after failed runs, and the serialized form.

Memory is an estimate, fitted to OpenVINO 2026.4. After a failed run with dynamic shapes the engine reads stale memory;
exporting and importing the model repairs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from nnadapter.drivers.envelope import ADVICE, PREFIX_BYTES, Envelope, check_seal
from nnadapter.drivers.interface import Compatibility, Control, Execution, Program
from nnadapter.drivers.openvino import engine
from nnadapter.errors import ExecutionError, IncompatibleProgramError
from nnadapter.ir.operand import Array
from nnadapter.process.resources import new_lock, new_re_lock

_BYTES_PER_NODE = 22 << 10
_WORKING_MEMORY = 1.2
"""Ratio of working memory to live tensors; above 1, because channels are padded to 8 or 16."""


def _runtime_operations(compiled: Any) -> Sequence[Any]:
    with suppress(Exception):
        operations: Sequence[Any] = compiled.get_runtime_model().get_ordered_ops()
        return operations
    return ()


def estimated_bytes(compiled: Any) -> int:
    """Estimate the bytes of a compiled model, except copied constants; 0 if unknown."""
    operations = _runtime_operations(compiled)
    input_names = {name for port in compiled.inputs for name in port.get_names()}
    constants = set[str]()
    allocations: dict[str, tuple[int, int]] = {}
    last_use: dict[str, int] = {}
    constant_bytes = 0
    for position, operation in enumerate(operations):
        name, nbytes = operation.get_friendly_name(), _bytes(operation)
        sources = [source.get_node().get_friendly_name() for source in operation.input_values()]
        last_use.update(dict.fromkeys(sources, position))
        if operation.get_type_name() == "Result":  # shares its source's memory
            continue
        if sources and not constants.issuperset(sources):
            allocations[name] = position, nbytes
        elif name not in input_names:  # an operation on constants runs once
            constants.add(name)
            constant_bytes += 0 if sources else nbytes
    working_bytes = int(_WORKING_MEMORY * _most(allocations, last_use, len(operations)))
    return constant_bytes + working_bytes + _BYTES_PER_NODE * len(operations)


def _most(allocations: dict[str, tuple[int, int]], last_use: dict[str, int], length: int) -> int:
    changes = [0] * (length + 1)
    for name, (position, nbytes) in allocations.items():
        changes[position] += nbytes
        changes[last_use.get(name, position) + 1] -= nbytes
    return max(accumulate(changes))


def _bytes(operation: Any) -> int:
    return sum(
        operation.get_output_tensor(port).size
        for port in range(operation.get_output_size())
        if operation.get_output_partial_shape(port).is_static
    )


_ROTARY_EMBEDDING = "RoPE"


def turns_by_narrow_tables(compiled: Any) -> bool:
    """Check for rotary embeddings with half-width cosine tables, for which imported programs read out of bounds."""
    return any(map(_has_narrow_tables, _runtime_operations(compiled)))


def _has_narrow_tables(operation: Any) -> bool:
    information = operation.get_rt_info()
    if "layerType" not in information or information["layerType"].astype(str) != _ROTARY_EMBEDDING:
        return False
    turned, table = (operation.get_input_partial_shape(port) for port in (0, 1))
    widths = [shape[len(shape) - 1] for shape in (turned, table)]
    return all(width.is_static for width in widths) and widths[0].get_length() == 2 * widths[1].get_length()


Read = Callable[[memoryview], tuple[Any, object]]
"""Function that imports an export. It returns the compiled model, and memory that the engine references."""


class RecoverableModel:
    """Compiled model, which is replaced after a failed run. Thread-safe.

    Args:
        read_from: memory that the engine references, so it must stay alive.
        read: imports an export; None if the imported model would compute other results.
        contents: the export from which the model was imported; exporting it again would be wrong.
        takes_turns: the engine runs one computation at a time.
    """

    def __init__(
        self,
        compiled: Any,
        read_from: object,
        read: Read | None,
        contents: memoryview | None = None,
        *,
        takes_turns: bool = False,
    ) -> None:
        self.compiled, self.read_from = compiled, read_from
        self.turn: AbstractContextManager[Any] = new_re_lock() if takes_turns else nullcontext()
        """Lock for dynamic shapes: no run starts before another's failure is known. Reentrant for signal handlers."""
        self.why = ""
        self._read, self._contents = read, contents
        self._next: RecoverableModel | None = None
        self._lock = new_lock()

    def latest_model(self) -> RecoverableModel:
        later = self._next
        return self if later is None or later is self else later.latest_model()

    def written(self) -> memoryview | None:
        """Return the model in the engine's export format; None if an import would be wrong."""
        if self._read is None or self._contents is not None:
            return self._contents
        return None if turns_by_narrow_tables(self.compiled) else memoryview(self.compiled.export_model().getvalue())

    def latest(self) -> RecoverableModel:
        """Return the model itself or, after a failed run, its replacement if one can be created."""
        if not self.why or self._read is None:
            return self
        with self._lock:
            if self._next is None:
                contents = self.written()
                self._next = self if contents is None else self._reload(contents, self._read)
        return self if self._next is self else self._next.latest()

    def _reload(self, contents: memoryview, read: Read) -> RecoverableModel:
        takes_turns = not isinstance(self.turn, nullcontext)
        return RecoverableModel(*read(contents), read, contents, takes_turns=takes_turns)


_FEW_BYTES = 1 << 16
"""Largest size of an output that is copied from the engine's memory, because binding would take longer."""
_NOTHING: Mapping[int, Any] = {}
_LOOK_MS = 2
_COUNTING = frozenset(("NonMaxSuppression", "NonZero"))


class OpenvinoExecution(Execution):
    """Inference request for one run at a time.

    Arrays remain bound, so callers that reuse arrays bind once. Inputs with dynamic shapes are passed per run.
    """

    def __init__(self, living: RecoverableModel, signature: engine.Ports) -> None:
        self._inputs = signature.inputs
        self._outputs = tuple((output.known_shape, np.dtype(output.dtype)) for output in signature.outputs)
        self._tensor = engine.module().Tensor
        self._fed = tuple((position, port) for position, port in enumerate(signature.inputs) if port is not None)
        self._begin(living.latest())

    def _begin(self, living: RecoverableModel) -> None:
        request = living.compiled.create_infer_request()
        self._infer, self._infer_copies = _plain_infer(request, copies=False), _plain_infer(request, copies=True)
        self._set_input = request.set_input_tensor
        self._open = frozenset(
            port for port, model_input in enumerate(request.model_inputs) if model_input.partial_shape.is_dynamic
        )
        self._knows_sizes = False if self._open else None
        self._stays = [shape is None or _is_small(shape, dtype) for shape, dtype in self._outputs]
        self._is_plain = all(self._stays) and not self._open
        self._bound_inputs: list[object] = [None] * len(self._inputs)
        self._bound_outputs: list[object] = [None] * len(self._outputs)
        self._request = request
        self._living = living  # last: frees memory that the request reads

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        self._begin_again()
        if self._is_plain:
            return self._copied(inputs)
        return self._computed(inputs, self._allocate_outputs(), self._infer_copies if all(self._stays) else self._infer)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """Run the model. Cancellation takes effect between nodes if all shapes are static, otherwise after the run.

        With dynamic shapes, a cancelled run would corrupt the sizes in later runs (last seen in OpenVINO 2026.4).
        """
        self._begin_again()
        return self._computed(
            inputs, self._allocate_outputs(), partial(self._infer_while_wanted, control.cancelled or _never)
        )

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        self._begin_again()
        return self._computed(inputs, outputs, self._infer)

    def _copied(self, inputs: Sequence[Array]) -> Sequence[Array]:
        try:
            for position, port in self._fed:
                self._bind(self._set_input, port, inputs[position], self._bound_inputs, position)
            pairs = zip(self._infer_copies(_NOTHING), self._outputs, strict=True)
            return [np.asarray(array, dtype) for array, (_, dtype) in pairs]
        except Exception as error:
            raise _failed(error) from error

    def _allocate_outputs(self) -> Sequence[Array | None]:
        return [
            None if stays or shape is None else np.empty(shape, dtype)
            for (shape, dtype), stays in zip(self._outputs, self._stays, strict=True)
        ]

    def _infer_while_wanted(self, cancelled: Callable[[], bool], fed: Mapping[int, Any]) -> Sequence[Any]:
        try:
            self._request.start_async(fed)
            while not self._request.wait_for(_LOOK_MS):
                if cancelled() and self._may_stop():
                    self._request.cancel()
                    with suppress(Exception):  # because it was cancelled
                        self._request.wait()
                    raise ExecutionError("OpenVINO stopped the run, because it was cancelled")
            self._request.wait()
        except BaseException:  # the engine still uses the arrays
            with suppress(Exception):
                if self._may_stop():
                    self._request.cancel()
                self._request.wait()
            raise
        return [
            self._request.get_output_tensor(port).data.copy() if stays else None
            for port, stays in enumerate(self._stays)
        ]

    def _may_stop(self) -> bool:
        """Check that all shapes are static; slow, so done on the first cancellation."""
        if self._knows_sizes is None:
            self._knows_sizes = False  # without the device's graph
            with suppress(Exception):
                nodes = _runtime_operations(self._request.get_compiled_model())
                kinds = {str(node.get_rt_info()["layerType"].astype(str)) for node in nodes}
                self._knows_sizes = bool(kinds) and kinds.isdisjoint(_COUNTING)
        return self._knows_sizes

    def _computed(
        self, inputs: Sequence[Array], results: Sequence[Array | None], infer: Callable[[Mapping[int, Any]], Any]
    ) -> Sequence[Array]:
        fed = {}
        try:
            for position, (port, array) in enumerate(zip(self._inputs, inputs, strict=True)):
                if port in self._open:
                    fed[port] = self._tensor(engine.shareable(array), shared_memory=True)
                elif port is not None:
                    self._bind(self._set_input, port, array, self._bound_inputs, position)
            for port, result in enumerate(results):
                if result is not None:
                    self._stays[port] = self._is_plain = False
                    self._bind(self._request.set_output_tensor, port, result, self._bound_outputs, port)
            make_array = np.array if infer is self._infer else np.asarray  # views must be copied
            computed = self._at_open_sizes(infer, fed) if self._open else infer(fed)
            return [
                make_array(output, dtype) if result is None else result
                for output, result, (_, dtype) in zip(computed, results, self._outputs, strict=True)
            ]
        except ExecutionError:  # cancelled, or another failed
            raise
        except Exception as error:
            raise _failed(error) from error

    def _at_open_sizes(self, infer: Callable[[Mapping[int, Any]], Any], fed: Mapping[int, Any]) -> Any:
        living = self._living
        with living.turn:
            if living.why:
                raise self._not_trusted()
            try:
                computed = infer(fed)
            except ExecutionError:
                raise
            except Exception as error:
                living.why = living.why or engine.brief(error)
                raise
        if living.why:
            raise self._not_trusted()
        return computed

    def _begin_again(self) -> None:
        if not self._living.why:
            return
        try:
            living = self._living.latest()
            if living is not self._living:
                self._begin(living)
        except Exception as error:
            raise self._not_trusted() from error
        if self._living.why:
            raise self._not_trusted()

    def _not_trusted(self) -> ExecutionError:
        return ExecutionError(
            f"OpenVINO failed at other sizes before ({self._living.why}), and may compute wrong results since; "
            "create a new session to use the device"
        )

    def close(self) -> None:
        del self._infer, self._infer_copies, self._set_input, self._request, self._living

    def _bind(self, setter: Callable[..., None], port: int, array: Array, bound: list[object], position: int) -> None:
        interface = array.__array_interface__
        place = (interface["data"][0], interface["shape"], interface["typestr"], interface["strides"])
        if bound[position] == place:
            return
        bound[position] = None
        setter(port, self._tensor(engine.shareable(array), shared_memory=True))
        bound[position] = place


def _failed(error: Exception) -> ExecutionError:
    return ExecutionError(f"OpenVINO failed while it ran: {engine.brief(error)}; check the inputs")


def _is_small(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" and prod(shape) * dtype.itemsize <= _FEW_BYTES


def _never() -> bool:
    return False


def _plain_infer(request: Any, *, copies: bool) -> Callable[[Mapping[int, Any]], Iterable[Array]]:
    native: Any = next((base for base in type(request).__mro__[1:] if base.__name__ == "InferRequest"), None)
    if native is None:
        return lambda fed: request.infer(fed, share_inputs=True, share_outputs=not copies).values()
    return lambda fed: native.infer(request, fed, share_outputs=not copies, decode_strings=False).values()


_ENVELOPE = Envelope(magic=b"nna-ov\r\n", version=3)
"""Programs of versions 1 and 2 may be wrong after import."""
_ALIGNMENT = 64


class OpenvinoProgram(Program):
    """Program of one compiled model, with the settings (`seal`) that it requires."""

    execution_bytes = 0

    def __init__(
        self,
        compiled: Any,
        signature: engine.Ports,
        seal: Mapping[str, Any],
        weight_bytes: int,
        copied: int,
        read_from: object = None,
        contents: memoryview | None = None,
        *,
        is_kept: bool = True,
        notes: Sequence[str] = (),
    ) -> None:
        self.notes = list(notes)
        self._seal = dict(seal)
        read = partial(_imported, seal=self._seal) if is_kept else None
        takes_turns = self._seal["properties"].get("PERFORMANCE_HINT") == "LATENCY"
        self._living = RecoverableModel(compiled, read_from, read, contents, takes_turns=takes_turns)
        self._signature = signature
        self._weight_bytes, self._copied_bytes = weight_bytes, copied
        self._estimated_bytes: int | None = None
        self._is_open = any(None in output.shape for output in signature.outputs)
        self._may_have_run = False

    @property
    def memory_bytes(self) -> int:
        self._living = self._living.latest_model()  # frees failed models
        if self._estimated_bytes is None or (self._is_open and self._may_have_run):
            self._estimated_bytes = estimated_bytes(self._living.compiled)
        return self._copied_bytes + self._estimated_bytes

    def create_execution(self) -> Execution:
        self._may_have_run = True
        with engine.translated("OpenVINO did not create a request", "close other programs", ExecutionError):
            return OpenvinoExecution(self._living, self._signature)

    def serialize(self) -> bytes | None:
        with engine.translated("OpenVINO did not export the program", "use it without serialization", ExecutionError):
            contents = self._living.written()
        if contents is None:
            return None
        header: dict[str, Any] = {"seal": self._seal, "signature": self._signature.to_dict()}
        header |= {"weight_bytes": self._weight_bytes, "notes": self.notes}
        written = json.dumps(header).encode()
        return _ENVELOPE.close(written + b" " * (-(PREFIX_BYTES + len(written)) % _ALIGNMENT), [contents])

    def close(self) -> None:
        del self._living


def compatibility(blob: memoryview, seal: Mapping[str, Any]) -> Compatibility:
    """Compare a serialized program's settings (`seal`) with a context's."""
    header = _ENVELOPE.header_of(blob)
    try:
        recorded = None if header is None else json.loads(header)["seal"]
        device = None if recorded is None else recorded["device"]
    except (ValueError, KeyError, TypeError):
        return Compatibility.RECOMPILE
    if recorded is None or device != seal["device"]:
        return Compatibility.INCOMPATIBLE
    same = all(recorded.get(name) == value for name, value in seal.items())
    return Compatibility.IDENTICAL if same else Compatibility.RECOMPILE


def deserialized(blob: bytes | memoryview, seal: Mapping[str, Any], *, is_checked: bool = False) -> OpenvinoProgram:
    """Load a serialized program; `is_checked` as in `Envelope.open`.

    Raises:
        IncompatibleProgramError: the bytes are damaged, or the program was compiled with another seal.
    """
    header, contents = _ENVELOPE.open(blob, is_checked=is_checked)
    try:
        fields = json.loads(header)
        recorded_seal, signature = fields["seal"], engine.ports_from(fields["signature"])
        weight_bytes = int(fields["weight_bytes"])
        notes = list(map(str, fields.get("notes", ())))
    except (ValueError, KeyError, TypeError) as error:
        raise IncompatibleProgramError(f"the program's header is damaged; {ADVICE}") from error
    check_seal(recorded_seal, seal)
    engine.refuse_forked(str(seal["device"]))
    with engine.translated("OpenVINO cannot import the program", ADVICE, IncompatibleProgramError):
        compiled, tensor = _imported(contents, seal)
        if not engine.fits(signature, compiled.inputs, engine.outputs_of(compiled)):
            raise IncompatibleProgramError(f"the program has other inputs and outputs than in its header; {ADVICE}")
    copied_bytes = weight_bytes if tensor is None else 0
    return OpenvinoProgram(compiled, signature, seal, weight_bytes, copied_bytes, tensor, contents, notes=notes)


def _imported(contents: memoryview, seal: Mapping[str, Any]) -> tuple[Any, Any]:
    around = seal["device"], dict(seal["properties"])
    tensor = engine.module().Tensor(engine.shareable(np.frombuffer(contents, np.uint8)), shared_memory=True)
    try:
        return engine.core().import_model(tensor, *around), tensor
    except TypeError:  # engines that require bytes, and copy them
        return engine.core().import_model(bytes(contents), *around), None
