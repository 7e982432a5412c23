"""The `cpu` device: ONNX Runtime on the CPU, a driver like any other.

Every CPU segment of a plan is one session. Sessions that stand beside other devices do not spin: a spinning thread
takes the processor from the device that runs next. ONNX Runtime cannot turn spinning off in its shared pool, and once
that pool is made it refuses every session of the process that wants its own; so a session gets a pool of its own that
sleeps, and past a bound on pools it gets none and runs in the caller's thread.

Foreign errors are translated here and nowhere else: `translated`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from nnadapter.converters.registry import since_version
from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceType,
    ModelForm,
    OptionValues,
    Threading,
)
from nnadapter.drivers.interface import Context, Device, Driver, Execution, Program
from nnadapter.drivers.onnxruntime_values import run_of
from nnadapter.drivers.profile import Profile
from nnadapter.errors import (
    CancelledError,
    CompilationError,
    DeviceNotFoundError,
    ExecutionError,
    InvalidInputError,
    InvalidModelError,
    ModelFileError,
    NNAdapterError,
)
from nnadapter.ir.operand import Array
from nnadapter.versions import check_versions
from partition.onnx_versions import stamp_down
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict, all_of

if TYPE_CHECKING:
    import onnx

PROVIDER = "CPUExecutionProvider"
QUIET = 4
"""Log severity: fatal errors only. Errors are raised, not printed as well."""
run_options: ContextVar[onnxruntime.RunOptions | None] = ContextVar("run_options", default=None)
"""The caller's run options for the run that is under way in this thread."""

_MOST_POOLS = 8
"""Thread pools at once in the process; each has as many threads as there are processors."""
_OLDEST_JUDGED_OPSET = 7
"""ONNX Runtime has its own ways with models older than that, which are not second-guessed."""
_KNOWN_OPSET = 23
"""Every ONNX Runtime that this package runs with knows this opset; what is newer is asked for."""
_PROFILE = Profile(
    peak_flops=64e9,
    bandwidth=16e9,
    launch_seconds=0.0,
    transfer_seconds=0.0,
    transfer_bandwidth=16e9,
    operation_seconds=1e-6,
    host_memory=True,
)
"""An assumption that two cores of the last ten years keep; `nnadapter calibrate cpu` measures this machine."""
_CAPABILITY = Capability(form=ModelForm.ONNX, threading=Threading.REENTRANT, profile=_PROFILE)


@cache
def onnxruntime_limits() -> tuple[Mapping[str, int], int]:
    """The newest opset by domain, and the newest IR version, that the installed ONNX Runtime loads; found by trying."""
    import onnx
    from onnx import defs

    domains = {"": defs.onnx_opset_version(), "ai.onnx.ml": _newest_of("ai.onnx.ml")}
    opsets = {
        domain: next((version for version in range(newest, 0, -1) if _loads({domain: version}, 8)), 1)
        for domain, newest in domains.items()
    }
    ir_version = next(
        (version for version in range(onnx.IR_VERSION, 3, -1) if _loads({"": min(13, opsets[""])}, version)), 4
    )
    return opsets, ir_version


def _newest_of(domain: str) -> int:
    from onnx import defs

    return max((schema.since_version for schema in defs.get_all_schemas() if schema.domain == domain), default=1)


def _loads(opsets: Mapping[str, int], ir_version: int) -> bool:
    from onnx import helper

    value = helper.make_tensor_value_info("x", 1, [1])
    graph = helper.make_graph([], "probe", [value], [value])
    imports = [helper.make_opsetid(domain, version) for domain, version in {"": 13, **opsets}.items()]
    model = helper.make_model(graph, ir_version=ir_version, opset_imports=imports)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = 1
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[PROVIDER])
    except native.Fail:
        return False
    return True


def loadable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` at an opset and an IR version that the installed ONNX Runtime loads.

    Raises:
        InvalidModelError: a node of it has no such meaning in any opset that ONNX Runtime knows.
    """
    opsets, ir_version = onnxruntime_limits()
    check_versions(model)
    stamped = stamp_down(model, opsets, ir_version)
    if isinstance(stamped, Unsupported):
        raise InvalidModelError(
            f"ONNX Runtime {onnxruntime.__version__} knows opsets up to {opsets['']}, and the model needs a newer one: "
            f"{stamped.detail}; update onnxruntime or export with an older opset"
        )
    return stamped


_MODEL_ERRORS = (native.InvalidGraph, native.InvalidProtobuf, native.NoModel, native.NotImplemented, native.Fail)
_TRANSLATIONS: tuple[tuple[tuple[type[Exception], ...], type[NNAdapterError]], ...] = (
    ((native.NoSuchFile,), ModelFileError),
    ((native.InvalidArgument,), InvalidInputError),
    (_MODEL_ERRORS, InvalidModelError),
    ((native.RuntimeException, native.EPFail, native.EngineError, native.ModelLoaded), ExecutionError),
    ((RuntimeError, ValueError, TypeError), InvalidInputError),
)
"""ONNX Runtime's exceptions and the ones they become, most specific first."""


@contextmanager
def translated(what: str, advice: str, default: type[NNAdapterError] | None = None) -> Iterator[None]:
    """Turn what ONNX Runtime raises into an error of ours: `what` failed, its own words, `advice`.

    Args:
        what: the beginning of the sentence.
        advice: what to do next.
        default: the class to raise whatever the cause; by cause if None.
    """
    try:
        yield
    except Exception as error:
        ours = _translation(error, what, advice, default)
        if ours is error:
            raise
        raise ours from error


def _translation(error: Exception, what: str, advice: str, default: type[NNAdapterError] | None = None) -> Exception:
    """The error of ours that stands for `error`: itself if it is ours already, or in no row of the table."""
    if isinstance(error, NNAdapterError):
        return error
    if "terminate flag" in str(error):
        return CancelledError(f"{what}: it was stopped by its run options")
    kind = default or next((ours for theirs, ours in _TRANSLATIONS if isinstance(error, theirs)), None)
    return error if kind is None else kind(f"{what}: {brief(error)}; {advice}")


def brief(error: BaseException) -> str:
    """ONNX Runtime's message on one line, without its source positions."""
    text = " ".join(str(error).split())
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return text or type(error).__name__


_pools = threading.BoundedSemaphore(_MOST_POOLS)
_options_lock = threading.Lock()


class CpuExecution(Execution):
    """Runs a session; it holds nothing of its own."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._inputs = tuple(value.name for value in session.get_inputs())
        self._outputs = [value.name for value in session.get_outputs()]
        self._run = run_of(session)

    def compute(self, inputs: Sequence[Any]) -> Sequence[Array]:
        """See `Execution.compute`. Sequences and optionals pass as ONNX Runtime's Python objects."""
        feeds = dict(zip(self._inputs, inputs, strict=True))
        try:
            results: Sequence[Array] = self._run(self._outputs, feeds, run_options.get())
        except Exception as error:
            ours = _translation(error, "ONNX Runtime failed on the CPU", "check the inputs")
            if ours is error:
                raise
            raise ours from error
        return results


class CpuProgram(Program):
    """One session."""

    def __init__(self, session: onnxruntime.InferenceSession, has_pool: bool, model_bytes: int) -> None:
        self._session = session
        self._model_bytes = model_bytes
        # Sessions are often dropped and not closed; the permit comes back either way, once.
        self._give_back = weakref.finalize(self, _pools.release) if has_pool else None

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`: the model with its weights; ONNX Runtime does not say what a run needs."""
        return self._model_bytes

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        return CpuExecution(self._session)

    def close(self) -> None:
        """See `Program.close`."""
        if self._give_back is not None:
            self._give_back()


class CpuContext(Context):
    """Compiles ONNX sub-graphs into sessions; their threads spin only where no other device of a plan runs beside."""

    def __init__(self, session_options: onnxruntime.SessionOptions | None = None) -> None:
        self._session_options = session_options

    def supported(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """See `Context.supported`: everything but operators that nobody has; constants need not be in the model.

        Session options may have brought libraries of operators, so with them nothing is refused.
        """
        if self._session_options is not None:
            return [SUPPORTED] * len(model.graph.node)
        opsets = {entry.domain: entry.version for entry in model.opset_import}
        functions = {(function.domain, function.name) for function in model.functions}
        return [_verdict(node, opsets, functions) for node in model.graph.node]

    def compile(self, model: onnx.ModelProto) -> Program:
        """See `Context.compile`.

        Raises:
            CompilationError: ONNX Runtime does not load the sub-graph.
        """
        return self._compiled(model, spins=False)

    def compile_whole(self, model: onnx.ModelProto) -> Program:
        """See `Context.compile_whole`."""
        return self._compiled(model, spins=True)

    def _compiled(self, model: onnx.ModelProto, *, spins: bool) -> Program:
        has_pool = _pools.acquire(blocking=False)
        try:
            contents = loadable(model).SerializeToString()
            session = _session(contents, self._session_options, has_pool=has_pool, spins=spins)
        except BaseException as error:
            if has_pool:
                _pools.release()
            if not isinstance(error, Exception):
                raise
            raise self._failed(model, error) from error
        return CpuProgram(session, has_pool, len(contents))

    def _failed(self, model: onnx.ModelProto, error: Exception) -> Exception:
        nodes = [node.name or node.op_type for node in model.graph.node]
        listed = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        return CompilationError(
            f"ONNX Runtime does not load the CPU segment of nodes {listed}: {brief(error)}; "
            "run the model with onnxruntime alone to see whether it takes it, or update onnxruntime",
            device="cpu",
            refused=refused_nodes(model, self._session_options),
        )


def refused_nodes(
    model: onnx.ModelProto, session_options: onnxruntime.SessionOptions | None = None
) -> dict[int, Unsupported]:
    """Return the valid nodes (positions) of a model that ONNX Runtime does not load, which is to blame on it, and why.

    Empty if no node by itself is at fault, or if the model is wrong.
    """
    from nnadapter.drivers.culprits import find_culprits

    def attempt(part: onnx.ModelProto) -> Unsupported | None:
        try:
            _session(loadable(part).SerializeToString(), session_options, has_pool=False, spins=False)
        except Exception as error:  # noqa: BLE001  whatever it raises is why it does not load
            reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), Reason.DEVICE_REFUSED)
            return Unsupported(reason, f"ONNX Runtime {onnxruntime.__version__} does not load it: {brief(error)}")
        return None

    return find_culprits(model, attempt)


_REASONS = (
    (native.NotImplemented, Reason.UNSUPPORTED_OPERATION),
    (InvalidModelError, Reason.UNSUPPORTED_VERSION),
)
"""Why ONNX Runtime did not load a node, by what was raised."""


class CpuDevice(Device):
    """The host's processor."""

    @property
    def capability(self) -> Capability:
        """See `Device.capability`."""
        return _CAPABILITY

    def create_context(self, options: OptionValues) -> CpuContext:
        """See `Device.create_context`."""
        return CpuContext()


class CpuDriver(Driver):
    """Offers the one processor."""

    def open(self, device_id: str) -> CpuDevice:
        """See `Driver.open`."""
        if device_id not in ("", "0"):
            raise DeviceNotFoundError(f"there is one cpu device, cpu:0, got cpu:{device_id}; choose 'cpu'")
        return CpuDevice()

    def devices(self) -> Sequence[DeviceInfo]:
        """See `Driver.devices`."""
        version = onnxruntime.__version__
        return (DeviceInfo(name="cpu", vendor="ONNX Runtime", type=DeviceType.CPU, sub_type="CPU", version=version),)


_DOMAINS = frozenset(
    (
        "ai.onnx.ml",
        "ai.onnx.training",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "com.microsoft",
        "com.microsoft.experimental",
        "com.microsoft.nchwc",
        "com.ms.internal.nhwc",
        "org.pytorch.aten",
    )
)
"""Domains of operators, beside ONNX's own, that ONNX Runtime's wheels know."""


def _verdict(node: onnx.NodeProto, opsets: Mapping[str, int], functions: Container[tuple[str, str]]) -> Verdict:
    inner = (part for attribute in node.attribute for graph in (attribute.g, *attribute.graphs) for part in graph.node)
    return all_of((_by_name(node, opsets, functions), *(_verdict(part, opsets, functions) for part in inner)))


def _by_name(node: onnx.NodeProto, opsets: Mapping[str, int], functions: Container[tuple[str, str]]) -> Verdict:
    if (node.domain, node.op_type) in functions or node.domain in _DOMAINS:
        return SUPPORTED
    if node.domain not in ("", "ai.onnx"):
        return Unsupported(Reason.UNSUPPORTED_DOMAIN, f"domain {node.domain!r} is not ONNX's and not ONNX Runtime's")
    opset = opsets.get(node.domain, opsets.get("", opsets.get("ai.onnx", 1)))
    since = since_version(node.domain, node.op_type, opset)
    if since is None and opset >= _OLDEST_JUDGED_OPSET:
        return Unsupported(Reason.UNSUPPORTED_OPERATION, f"opset {opset} has no operator {node.op_type!r}")
    if since is None or since <= _KNOWN_OPSET or since <= onnxruntime_limits()[0][""]:
        return SUPPORTED
    return Unsupported(
        Reason.UNSUPPORTED_VERSION,
        f"{node.op_type} is of opset {since}, ONNX Runtime {onnxruntime.__version__} knows opsets up to "
        f"{onnxruntime_limits()[0]['']}",
    )


_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")


def _session(
    contents: bytes, given: onnxruntime.SessionOptions | None, *, has_pool: bool, spins: bool
) -> onnxruntime.InferenceSession:
    if given is None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = QUIET
    else:
        options = given
    # SessionOptions cannot be copied, so the caller's own are changed while the session is made, under a lock. An
    # entry cannot be taken out again: spinning stays off in the caller's object, unless the caller had said something.
    with _options_lock:
        for key in () if spins else _SPINNING:
            if not _has_entry(options, key):
                options.add_session_config_entry(key, "0")
        threads = options.intra_op_num_threads
        options.intra_op_num_threads = threads or (0 if has_pool else 1)
        try:
            return onnxruntime.InferenceSession(contents, options, providers=[PROVIDER])
        finally:
            options.intra_op_num_threads = threads


def _has_entry(options: onnxruntime.SessionOptions, key: str) -> bool:
    try:
        options.get_session_config_entry(key)
    except RuntimeError:
        return False
    return True
