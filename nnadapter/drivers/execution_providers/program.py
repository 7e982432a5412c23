"""A compiled segment: a session on a provider. As bytes: an EPContext model in an envelope.

The envelope's header is JSON with everything that the compiled form depends on. Its contents are the model that ONNX
Runtime's `ModelCompiler` makes, with what the provider compiled inside it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.envelope import ADVICE, Envelope
from nnadapter.drivers.execution_providers.assignment import read_assignment
from nnadapter.drivers.execution_providers.backing import Backing
from nnadapter.drivers.execution_providers.execution import EpExecution
from nnadapter.drivers.execution_providers.names import BY_KERNELS
from nnadapter.drivers.execution_providers.self_contained import COMPILED, external_data_text
from nnadapter.drivers.interface import Execution, Program
from nnadapter.drivers.onnxruntime.errors import brief
from nnadapter.drivers.onnxruntime.sessions import session_execution
from nnadapter.drivers.onnxruntime.weights import Loadable
from nnadapter.errors import IncompatibleProgramError
from nnadapter.process.real_onnxruntime import onnxruntime

if TYPE_CHECKING:
    from nnadapter.drivers.onnxruntime.profiling import SessionProfile

_ENVELOPE = Envelope(magic=b"NNAORTEP", version=1)


class EpProgram(Program):
    """One session on a provider."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        backing: Backing,
        model: Loadable,
        profile: SessionProfile | None = None,
    ) -> None:
        self._session, self._profile = session, profile
        self._backing = backing
        self._model_bytes, self._weights = model.nbytes, model.weights
        self._contents = b"" if backing.provider in BY_KERNELS else model.contents  # those have no compiled form

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`: the model, if kept to be serialized, and as much for what was compiled of it."""
        return self._model_bytes + len(self._contents)

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`: the session computes for all."""
        return 0

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        if self._profile is None and self._backing.keeps_values:
            return EpExecution(self._session, self._backing.provider)
        return session_execution(self._session, self._backing.provider, self._profile)

    def serialize(self) -> bytes | None:
        """See `Program.serialize`: None where the provider has no compiled form, or one that names files."""
        contents = _compiled(self._contents, self._backing) if self._contents else None
        if contents is None:
            return None
        inputs = [value.name for value in self._session.get_inputs()]
        outputs = [value.name for value in self._session.get_outputs()]
        header = {**_needs(self._backing), "inputs": inputs, "outputs": outputs}
        return _ENVELOPE.close(json.dumps(header).encode(), [contents])

    def close(self) -> None:
        """See `Program.close`."""
        if self._profile is not None:
            self._profile.end()


class DeserializedProgram(EpProgram):
    """One session on a provider, of what it compiled before."""

    def serialize(self) -> bytes | None:
        """See `Program.serialize`."""
        return None


def deserialize_program(blob: bytes | memoryview, backing: Backing, *, is_checked: bool = False) -> Program:
    """Return the program that `EpProgram.serialize` wrote.

    Args:
        blob: the bytes; they are copied once, for ONNX Runtime.
        backing: the provider with its options.
        is_checked: they are not damaged, see `Envelope.open`.

    Raises:
        IncompatibleProgramError: the bytes are damaged, or made by another provider, version or options.
    """
    header, contents = _ENVELOPE.open(blob, is_checked=is_checked)
    fields, model = _read(header), bytes(contents)
    for name, expected in _needs(backing).items():
        if fields.get(name) != expected:
            raise IncompatibleProgramError(
                f"the program was compiled with {name} {fields.get(name)!r}, expected {expected!r}; {ADVICE}"
            )
    _check_self_contained(model)
    try:
        session = backing.open(model)
    except Exception as error:
        raise IncompatibleProgramError(f"{backing.provider} refuses the program: {brief(error)}; {ADVICE}") from error
    names = [[value.name for value in values] for values in (session.get_inputs(), session.get_outputs())]
    assignment = read_assignment(session, backing.provider)
    if assignment.left or assignment.made or names != [fields.get("inputs"), fields.get("outputs")]:
        raise IncompatibleProgramError(f"{backing.provider} does not take all of the program as it was; {ADVICE}")
    return DeserializedProgram(session, backing, Loadable(model))


def _needs(backing: Backing) -> dict[str, Any]:
    """What a compiled form depends on. Where libraries lie is of no account."""
    return {
        "provider": backing.provider,
        "version": backing.version,
        "onnxruntime": onnxruntime.__version__,
        "options": {name: value for name, value in sorted(backing.options.items()) if not name.endswith("_path")},
        "optimization": backing.optimization,
    }


def _read(header: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(header)
    except ValueError as error:
        raise IncompatibleProgramError(f"the program's header is no JSON: {error}; {ADVICE}") from error
    if not isinstance(fields, dict):
        raise IncompatibleProgramError(f"the program's header is {type(fields).__name__}, expected an object; {ADVICE}")
    return fields


def _compiled(contents: bytes, backing: Backing) -> bytes | None:
    try:
        compiler = onnxruntime.ModelCompiler(
            backing.session_options(),
            contents,
            embed_compiled_data_into_model=True,
            graph_optimization_level=backing.level,
        )
        compiled_bytes: bytes = compiler.compile_to_bytes()
    except Exception:  # noqa: BLE001  providers without such a form fail in ways of their own
        return None
    import onnx  # a program that is loaded needs none of it

    if all(node.op_type != COMPILED for node in onnx.load_from_string(compiled_bytes).graph.node):
        return None
    return None if external_data_text(compiled_bytes) else compiled_bytes


def _check_self_contained(contents: bytes) -> None:
    """Raise IncompatibleProgramError unless everything compiled is inside: a program names no files to be opened."""
    try:
        elsewhere = external_data_text(contents)
    except Exception as error:
        raise IncompatibleProgramError(f"the program holds no ONNX model: {error}; {ADVICE}") from error
    if elsewhere:
        raise IncompatibleProgramError(f"the program keeps {elsewhere} in another file; {ADVICE}")
