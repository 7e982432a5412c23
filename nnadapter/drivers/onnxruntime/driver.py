"""Device `cpu`: ONNX Runtime on the CPU.

Source of `_PACKED`: ONNX Runtime's `contrib_ops/cpu/bert/multihead_attention.cc`; observed with 1.32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import cache
from math import inf, prod
from typing import TYPE_CHECKING, NamedTuple

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceRole,
    DeviceType,
    ModelForm,
    OptionValues,
    Profile,
    Threading,
    precisions_of,
)
from nnadapter.drivers.interface import Context, Device, Driver, Program
from nnadapter.drivers.onnxruntime.failures import brief, wrong_optimizers
from nnadapter.drivers.onnxruntime.program import open_program
from nnadapter.drivers.onnxruntime.sessions import loadable_of, open_session, profile_of, shrink_arena, without_files
from nnadapter.drivers.onnxruntime.values import tiny_session_options
from nnadapter.errors import CompilationError, DeviceNotFoundError, InvalidModelError
from nnadapter.onnx.domains import op_name, plain_domain
from nnadapter.onnx.graphs import opsets_of, with_nested
from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER, loadable, onnxruntime_limits
from nnadapter.onnx.schemas import MICROSOFT, since_version
from nnadapter.process.resources import memoize
from nnadapter.traces.trace import SILENT, Trace
from partition.graph import SUPPORTED, Reason, Unsupported, Verdict, all_of

if TYPE_CHECKING:
    import onnx
    import onnxruntime


class _Packed(NamedTuple):
    """Input that packs several operands if it has this rank. A node with such an input loads, but fails to run."""

    position: int
    rank: int
    description: str


_PACKED: Mapping[tuple[str, str], tuple[_Packed, ...]] = {
    (MICROSOFT, "MultiHeadAttention"): (_Packed(0, 5, "queries, keys and values"), _Packed(1, 5, "keys and values"))
}


def kernel_verdicts(model: onnx.ModelProto) -> Mapping[int, Verdict]:
    """Return refusals, by position, of nodes that load but fail to run, because an input packs several operands."""
    nodes = {at: node for at, node in enumerate(model.graph.node) if (node.domain, node.op_type) in _PACKED}
    ranks = _ranks(model) if nodes else {}
    verdicts = {position: _kernel_verdict(node, ranks) for position, node in nodes.items()}
    return {position: verdict for position, verdict in verdicts.items() if not verdict}


def _ranks(model: onnx.ModelProto) -> Mapping[str, int]:
    graph = model.graph
    typed = (value for values in (graph.value_info, graph.output, graph.input) for value in values)
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in typed if _has_rank(value)}
    return {**ranks, **{tensor.name: len(tensor.dims) for tensor in graph.initializer}}


def _has_rank(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"))


def _kernel_verdict(node: onnx.NodeProto, ranks: Mapping[str, int]) -> Verdict:
    for position, rank, operands in _PACKED[node.domain, node.op_type]:
        if position < len(node.input) and ranks.get(node.input[position]) == rank:
            detail = f"ONNX Runtime has no kernel for {node.op_type} of {operands} in one input of {rank} dimensions"
            return Unsupported(Reason.UNSUPPORTED_OPERATION, detail)
    return SUPPORTED


_ENOUGH = 150_000
"""Amount of work, in output elements, from which a thread pool makes a model faster."""
_PRODUCTS = 32
"""Number of multiply-adds that take as long as one output element of an elementwise function."""
_DYNAMIC_SIZE_GUESS = 128
_WITHOUT_WEIGHTS = frozenset({"Attention", "Einsum", "Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"})
"""Ops that multiply matrices even if no input is constant."""
_GROWING = frozenset({"ConstantOfShape", "Expand", "EyeLike", "OneHot", "Range", "Resize", "Tile", "Upsample"})
_NO_WORK = frozenset({"Constant", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"})


def threads_gain(model: onnx.ModelProto) -> bool:
    """Return whether a thread pool, which sleeps between runs, makes a model faster.

    Waking a pool costs more than short segments gain. The estimate assumes that each node's output is as large as the
    model's largest input or output. Models with subgraphs, with other domains or without tensors always get a pool.
    """
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    border = [value for value in (*model.graph.input, *model.graph.output) if value.name not in weights]
    most = max(map(_elements, border), default=inf)
    work = 0.0
    for node in model.graph.node:
        work += _work(node, most, weights)
        if work >= _ENOUGH:
            return True
    return False


def _elements(value: onnx.ValueInfoProto) -> float:
    if not _has_rank(value):
        return inf
    dimensions = value.type.tensor_type.shape.dim
    return prod(
        dimension.dim_value if dimension.HasField("dim_value") else _DYNAMIC_SIZE_GUESS for dimension in dimensions
    )


def _work(node: onnx.NodeProto, most: float, weights: Mapping[str, Sequence[int]]) -> float:
    if node.op_type in _NO_WORK:
        return 0.0
    if (
        plain_domain(node.domain)
        or node.op_type in _GROWING
        or any(attribute.HasField("g") for attribute in node.attribute)
    ):
        return inf
    matrices = [weights[name] for name in node.input if len(weights.get(name, ())) > 1]
    if not matrices and node.op_type in _WITHOUT_WEIGHTS:
        matrices = [(_DYNAMIC_SIZE_GUESS, _DYNAMIC_SIZE_GUESS)]
    rows = [most / max(1, min(dimensions[:2])) for dimensions in matrices]
    return most + sum(row_count * prod(matrix) for row_count, matrix in zip(rows, matrices, strict=True)) / _PRODUCTS


_OLDEST_JUDGED_OPSET = 7
"""Oldest opset whose nodes are judged; ONNX Runtime treats older models specially."""
_KNOWN_OPSET = 23
_OF_TYPES = "Type Error: "
_UNKNOWN_OPERATOR = "is not a registered function/op"
_LOADED_PARTS = 64
_PROFILE = Profile(
    peak_flops=64e9,
    bandwidth=16e9,
    launch_seconds=0.0,
    transfer_seconds=0.0,
    transfer_bandwidth=16e9,
    operation_seconds=1e-6,
    host_memory=True,
)
"""Assumed speed of two cores of the last ten years; `nnadapter calibrate cpu` measures the real speed."""
_CAPABILITY = Capability(
    form=ModelForm.ONNX,
    threading=Threading.REENTRANT,
    role=DeviceRole.HOST,
    profile=_PROFILE,
    checks_indices=True,
    supports_external_initializers=True,
    precisions=precisions_of("float32 w8a8 w8 w4a16"),
)


class CpuContext(Context):
    """Context that compiles ONNX subgraphs to sessions."""

    def __init__(
        self, session_options: onnxruntime.SessionOptions | None = None, trace: Trace = SILENT, lane: str = "cpu"
    ) -> None:
        self._session_options = session_options
        self._trace, self._lane = trace, lane
        self._has_compiled = False

    def with_session_options(self, options: onnxruntime.SessionOptions | None) -> CpuContext:
        return CpuContext(options, self._trace, self._lane)

    def with_trace(self, trace: Trace, lane: str) -> CpuContext:
        return CpuContext(self._session_options, trace, lane)

    def supported(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """Accept all nodes, except unknown operators and forms that fail at run time.

        With session options no operator is unknown, since they may register operators.
        """
        lacking = kernel_verdicts(model)
        if self._session_options is not None:
            return [lacking.get(position, SUPPORTED) for position in range(len(model.graph.node))]
        opsets = opsets_of(model.opset_import)
        functions = {(function.domain, function.name) for function in model.functions}

        @cache
        def judge(domain: str, op_type: str) -> Verdict:
            return _by_name(domain, op_type, opsets, functions)

        nodes = enumerate(model.graph.node)
        return [lacking[position] if position in lacking else _verdict(node, judge) for position, node in nodes]

    def compile(self, model: onnx.ModelProto) -> Program:
        return self._compiled(model, spins=False)

    def compile_whole_graph(self, model: onnx.ModelProto) -> Program:
        return self._compiled(model, spins=True)

    def close(self) -> None:
        if self._has_compiled:
            shrink_arena()

    def _compiled(self, model: onnx.ModelProto, *, spins: bool) -> Program:
        self._has_compiled, nodes = True, len(model.graph.node)
        try:
            return open_program(
                loadable_of(model, by_address=self._session_options is None),
                self._session_options,
                wants_pool=spins or threads_gain(model),
                spins=spins,
                without=wrong_optimizers(model),
                nodes=nodes,
                profile=profile_of(self._trace, self._lane, nodes),
            )
        except Exception as error:
            raise self._failed(model, error) from error

    def _failed(self, model: onnx.ModelProto, error: Exception) -> Exception:
        nodes = [node.name or node.op_type for node in model.graph.node]
        listed = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        return CompilationError(
            f"ONNX Runtime does not load the CPU segment of nodes {listed}: {brief(error)}; "
            "test the model with onnxruntime alone, or update onnxruntime",
            device="cpu",
            refused=refused_nodes(model, self._session_options),
        )


def refused_nodes(
    model: onnx.ModelProto, session_options: onnxruntime.SessionOptions | None = None
) -> dict[int, Unsupported]:
    """Return the refusals, by position, of valid nodes that ONNX Runtime does not load."""
    from nnadapter.drivers.refused_nodes import find_culprits

    def attempt(part: onnx.ModelProto) -> Unsupported | None:
        try:
            open_session(loadable_of(part, by_address=False), session_options, has_pool=False, spins=False)
        except Exception as error:  # noqa: BLE001  a refusal
            return Unsupported(_reason(error), f"ONNX Runtime {_version()} does not load the node: {brief(error)}")
        return None

    return find_culprits(model, attempt)


def refuse_invalid_nodes(
    model: onnx.ModelProto,
    suspects: Collection[int],
    types: Mapping[str, onnx.ValueInfoProto],
    is_external: Callable[[int], bool],
    contexts: Sequence[Context],
    session_options: onnxruntime.SessionOptions | None = None,
) -> None:
    """Check that each node in `suspects` (positions) is valid and has an op that some device knows.

    `is_external` returns True for a position whose node may belong to a third party. `contexts` are other ONNX devices,
    which may support a node.

    Raises:
        InvalidModelError: a node fails the check.
    """
    from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph

    from nnadapter.drivers.refused_nodes import find_refused
    from nnadapter.onnx.parts import Parts

    errors: dict[bytes, Exception] = {}
    parts = Parts(model, types=types)
    positions = sorted(cases[0] for cases in parts.cases(suspects).values())

    def attempt(part: onnx.ModelProto) -> Unsupported | None:
        try:
            _load_unoptimized(loadable(part).SerializeToString(deterministic=True))
        except Exception as error:  # noqa: BLE001  only InvalidGraph counts in the end
            if len(part.graph.node) == 1:
                errors[part.SerializeToString(deterministic=True)] = error
            return Unsupported(Reason.DEVICE_REFUSED, brief(error))
        return None

    for position in find_refused(positions, parts, attempt):
        error = errors.get(parts.part([position]).SerializeToString(deterministic=True))
        if error is None or is_external(position):
            continue
        is_unknown = _UNKNOWN_OPERATOR in str(error)
        part = _with_sizes(parts.part([position]))
        if (is_unknown or parts.is_valid(position)) and any(all(context.supported(part)) for context in contexts):
            continue
        if is_unknown and refused_nodes(part, session_options):
            node = model.graph.node[position]
            name, label = op_name(node.domain, node.op_type), node.name or f"{node.op_type}_{position}"
            raise InvalidModelError(
                f"node {label!r} ({node.op_type}) is supported by no device, not even the CPU: {brief(error)}; install "
                f"the package that provides {name}, give session options with the library that has the operator, or "
                "export without it"
            ) from error
        if isinstance(error, InvalidGraph) or _OF_TYPES in str(error):
            raise InvalidModelError(
                f"the model is invalid: {brief(error)}; correct the node, or export the model again"
            ) from error


def _with_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    from nnadapter.onnx.construction import copied

    sized = copied(model)
    for value in sized.graph.input:
        for dimension in value.type.tensor_type.shape.dim:
            dimension.dim_value = dimension.dim_value or 1
    return sized


@memoize(_LOADED_PARTS)
def _load_unoptimized(contents: bytes) -> None:
    from nnadapter.process.real_onnxruntime import onnxruntime

    options = without_files(tiny_session_options())
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    onnxruntime.InferenceSession(contents, options, providers=[CPU_PROVIDER])


def _reason(error: Exception) -> Reason:
    # lazy: after failures only
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    if isinstance(error, NoKernel):
        return Reason.UNSUPPORTED_OPERATION
    return Reason.UNSUPPORTED_VERSION if isinstance(error, InvalidModelError) else Reason.DEVICE_REFUSED


def _version() -> str:
    from nnadapter.process.real_onnxruntime import onnxruntime

    return str(onnxruntime.__version__)


class CpuDevice(Device):
    """Host processor."""

    capability = _CAPABILITY

    def create_context(self, options: OptionValues) -> CpuContext:
        return CpuContext()


class CpuDriver(Driver):
    """Driver of the host processor."""

    def open(self, device_id: str) -> CpuDevice:
        if device_id not in ("", "0"):
            raise DeviceNotFoundError(f"there is one cpu device, cpu:0, got cpu:{device_id}; choose 'cpu'")
        return CpuDevice()

    def devices(self) -> Sequence[DeviceInfo]:
        row = DeviceInfo(name="cpu", vendor="ONNX Runtime", type=DeviceType.CPU, sub_type="CPU", version=_version())
        return (row,)


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


def _verdict(node: onnx.NodeProto, judge: Callable[[str, str], Verdict]) -> Verdict:
    if not node.attribute:
        return judge(node.domain, node.op_type)
    return all_of(judge(part.domain, part.op_type) for part in with_nested([node]))


def _by_name(domain: str, op_type: str, opsets: Mapping[str, int], functions: Container[tuple[str, str]]) -> Verdict:
    if (domain, op_type) in functions or domain in _DOMAINS:
        return SUPPORTED
    if plain_domain(domain):
        return Unsupported(Reason.UNSUPPORTED_DOMAIN, f"domain {domain!r} belongs neither to ONNX nor to ONNX Runtime")
    opset = opsets.get(plain_domain(domain), 1)
    since = since_version(domain, op_type, opset)
    if since is None and opset >= _OLDEST_JUDGED_OPSET:
        from nnadapter.drivers.onnxruntime.builtin_operators import has_operator  # lazy: seldom needed

        if not has_operator(op_type, opset):
            return Unsupported(
                Reason.UNSUPPORTED_OPERATION, f"neither opset {opset} nor ONNX Runtime has an operator {op_type!r}"
            )
    if since is None or since <= _KNOWN_OPSET or since <= onnxruntime_limits()[0][""]:
        return SUPPORTED
    return Unsupported(
        Reason.UNSUPPORTED_VERSION,
        f"{op_type} is of opset {since}, ONNX Runtime {_version()} knows opsets up to {onnxruntime_limits()[0]['']}",
    )
