"""Failures of ONNX Runtime: translated errors, retries with fewer optimizations, and defective optimizers.

`ConstantFolding` may crash on an `If` with constant condition that contains another `If`. `FLAWS` lists other
optimizers that crash or compute wrong results, with graph checks that detect affected models. All were observed with
1.32.
"""

from __future__ import annotations

import os
import re
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nnadapter import errors
from nnadapter.onnx.wire_format import (
    DOUBLE,
    FLOAT16,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    Contents,
    WireConstant,
    WireGraph,
    WireNode,
    mapped,
    read_inlined_graphs,
    search,
)
from nnadapter.process.resources import memoize

if TYPE_CHECKING:
    import onnx
    import onnxruntime


TERMINATED = "Exiting due to terminate flag being set to true"
"""Message of a terminated run; clients search for it."""
_Translations = tuple[tuple[tuple[type[Exception], ...], type[errors.NNAdapterError]], ...]


@memoize(1)
def _translations() -> _Translations:
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    model_errors = (native.InvalidGraph, native.InvalidProtobuf, native.NoModel, native.NotImplemented, native.Fail)
    return (
        ((native.NoSuchFile,), errors.ModelFileError),
        ((native.InvalidArgument,), errors.InvalidInputError),
        (model_errors, errors.InvalidModelError),
        ((native.RuntimeException, native.EPFail, native.EngineError, native.ModelLoaded), errors.ExecutionError),
        ((RuntimeError, ValueError, TypeError), errors.InvalidInputError),
    )


@contextmanager
def translated(problem: str, advice: str, default: type[errors.NNAdapterError] | None = None) -> Iterator[None]:
    """Translate ONNX Runtime's exceptions of the block into `default`; if it is None, according to their class."""
    try:
        yield
    except Exception as error:
        ours = translation(error, problem, advice, default)
        if ours is error:
            raise
        raise ours from error


def translation(
    error: Exception, problem: str, advice: str, default: type[errors.NNAdapterError] | None = None
) -> Exception:
    """Return the translated error; an error of unknown class is returned unchanged."""
    if isinstance(error, errors.NNAdapterError):
        return error
    if "terminate flag" in str(error):
        return errors.CancelledError(f"{problem}: stopped by its run options, {TERMINATED}")
    if type(error).__name__ == "ModelLoadCanceled":  # missing in older versions
        return errors.CancelledError(f"{problem}: the load cancellation flag of its session options is set; clear it")
    kind = default or next((ours for theirs, ours in _translations() if isinstance(error, theirs)), None)
    may_blame_inputs = kind in (errors.InvalidModelError, errors.ExecutionError) and advice == "check the inputs"
    if may_blame_inputs and _OF_INPUTS.search(str(error)):
        kind = errors.InvalidInputError
    return error if kind is None else kind(f"{problem}: {brief(error)}; {advice}")


_OF_INPUTS = re.compile(
    "[Oo]ut of (bounds|range)|within bounds|must be (within|in |between|greater|positive|>=|non-negative)"
    "|must not be negative|should (not )?be greater|[Ii]nvalid (value|index|axis)"
    "|ScalesValidation|does not match|axis_tensor|not in valid range|smaller than|is not in|HandleNegativeAxis"
    "|AllocateRawInternal|[Oo]verflow"
    "|^(?:(?!while running).)*while running (AffineGrid|Col2Im|DFT|MaxRoiPool|Reshape|Resize|RoiAlign"
    "|Split|SplitToSequence|Squeeze|STFT|TensorScatter) "
)
"""Messages about input values. Operator names inside If do not match, because other causes are possible there."""


_POSITION = re.compile(r"\S*\.(?:cc|h):\d+ (?:[\w:*&<>~, ]+\([^()]*\)|\w+) ")


def brief(error: BaseException) -> str:
    """Return ONNX Runtime's message on one line."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    if "[ONNXRuntimeError]" in text:
        # Provider errors are nested; the innermost has the cause.
        text = text.rpartition("[ONNXRuntimeError]")[2].split(" : ", 3)[-1]
    return _POSITION.sub("", text) or type(error).__name__


_Result = TypeVar("_Result")
FEWER_OPTIMIZATIONS = "fewer optimizations"
_DISABLED_OPTIMIZERS = "optimization.disable_specified_optimizers"
EXTENDED = "extended optimizations"
"""Name for all optimizers above ORT_ENABLE_BASIC, because some have no name of their own."""
_MOST_ATTEMPTS = 3
"""Maximum number of repeated runs per session: if inputs are at fault, repetition is useless."""


def disabled_optimizers(
    options: onnxruntime.SessionOptions | None, wrong: Iterable[str], caller_disabled: Iterable[str] = ()
) -> list[str]:
    """Return `wrong` and the optimizers that the caller disabled; setting `wrong` alone would replace the caller's."""
    names = dict.fromkeys(wrong)
    if not names:
        return list(caller_disabled)
    entry = None if options is None else config_entry(options.get_session_config_entry, _DISABLED_OPTIMIZERS)
    return list(names | dict.fromkeys(caller_disabled) | dict.fromkeys(filter(None, (entry or "").split(";"))))


def config_entry(read: Callable[[str], object], key: str) -> str | None:
    """Return an entry of session or run options by their method `read`; None if unset."""
    try:
        return str(read(key))
    except RuntimeError:  # no such entry
        return None


def with_fewer_optimizations(
    options: onnxruntime.SessionOptions, attempt: Callable[[], _Result], problem: str, error: Exception
) -> tuple[_Result, str]:
    """Retry at lower optimization levels; return the result of the highest that works, and a note.

    The note is also a warning. If even the unoptimized model fails, `error` is raised.
    """
    from nnadapter.process.real_onnxruntime import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    highest, chosen = options.graph_optimization_level, levels.ORT_DISABLE_ALL
    if highest == chosen or not _may_come_of_optimizers(error):
        raise error
    try:
        with temporarily(options, graph_optimization_level=chosen):
            result = attempt()
    except Exception:  # noqa: BLE001  the first error has the cause
        raise error from None
    for level in (levels.ORT_ENABLE_EXTENDED, levels.ORT_ENABLE_BASIC):
        if int(level) < int(highest):
            with suppress(Exception), temporarily(options, graph_optimization_level=level):
                result, chosen = attempt(), level
                break
    note = (
        f"{FEWER_OPTIMIZATIONS}: {problem} at optimization level {highest.name} ({brief(error)}), "
        f"so it runs at {chosen.name}"
    )
    warnings.warn(note, errors.DriverWarning, stacklevel=3)
    return result, note


def unoptimized() -> onnxruntime.SessionOptions:
    """Return session options without optimizations."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


class UnoptimizedRuns:
    """Limit on the number of failed runs that are repeated without optimizations."""

    def __init__(self) -> None:
        self._attempts = 0

    def allows(self, error: Exception) -> bool:
        if self._attempts >= _MOST_ATTEMPTS or not _may_come_of_optimizers(error):
            return False
        self._attempts += 1
        return True


def _may_come_of_optimizers(error: Exception) -> bool:
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    kinds = (native.InvalidArgument, native.Fail, native.RuntimeException, native.NotImplemented)
    return isinstance(error, kinds) and "terminate flag" not in str(error)


def without_extended(options: onnxruntime.SessionOptions, disabled: Iterable[str]) -> AbstractContextManager[None]:
    """Lower the optimization level to BASIC in the block if `disabled` contains `EXTENDED`."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    level, basic = options.graph_optimization_level, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    is_lowered = EXTENDED in disabled and int(level) > int(basic)
    return temporarily(options, graph_optimization_level=basic) if is_lowered else nullcontext()


@contextmanager
def temporarily(options: onnxruntime.SessionOptions, **settings: Any) -> Iterator[None]:
    """Set attributes of session options in the block."""
    saved_settings = {name: getattr(options, name) for name in settings}
    try:
        for name, value in settings.items():
            setattr(options, name, value)
        yield
    finally:
        for name, value in saved_settings.items():
            setattr(options, name, value)


def wrong_optimizers(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return optimizers that may crash on a model.

    Source: ONNX Runtime 1.31, core/optimizer/constant_folding.cc.
    """
    from nnadapter.onnx.graphs import with_nested

    choices = [node for node in with_nested(model.graph.node) if node.op_type == "If"]
    initializer_names = {tensor.name for tensor in model.graph.initializer} if len(choices) > 1 else ()
    for choice in choices:
        inner_nodes = islice(with_nested([choice]), 1, None)
        if choice.input[0] in initializer_names and any(node.op_type == "If" for node in inner_nodes):
            return ("ConstantFolding",)
    return ()


_UNCHANGED = frozenset(("Identity", "Dropout", "Cast", "Expand", "Transpose", "Slice"))
"""Operators that ONNX Runtime removes before fusions if they have no effect."""
_NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}
_INTEGERS = (UINT8, INT8, UINT16, INT16)
_LONGEST_CHAIN = 100
_MATRIX_RANK = 2
_MOVED_BATCH = (b"permB", *(b"perm@" + bytes((first,)) for first in range(1, 6)))
"""Encoded `perm` attributes that move the first dimension."""


class Flaw(NamedTuple):
    """Graph pattern that breaks some optimizers."""

    optimizers: tuple[str, ...]
    words: tuple[bytes, ...]
    """Byte strings that occur in every model with this pattern."""
    occurs_in: Callable[[WireGraph], bool]
    any_word: tuple[bytes, ...] = ()
    """Byte strings; every model with this pattern contains at least one. Empty for no condition."""


class _Norm(NamedTuple):
    """Division by the root `Sqrt(Add(ReduceMean(Pow(base, exponent)), epsilon))`, or multiplication by 1 / root."""

    power: WireNode
    mean: WireNode
    epsilon: str
    root: WireNode
    numerator: str


def _layer_norm(graph: WireGraph) -> bool:
    """Return whether the graph has a norm of a Sub that resembles a layer norm, but is none."""
    for norm in _norms(graph):
        base, exponent = (_producer(graph, name, "Sub") for name in norm.power.inputs)
        if base is None and exponent is None:
            continue
        power = _constant(graph, norm.power.inputs[1])
        is_root = _producer(graph, norm.numerator, "Sqrt") is norm.root
        if power is None or power.number != 2 or _has_another_shape(graph, norm) or is_root:
            return True
        if any(node and _is_reversed(graph, node) for node in (base, _producer(graph, norm.numerator, "Sub"))):
            return True
    return False


def _rms_norm(graph: WireGraph) -> bool:
    """Return whether the graph has an RMS norm without keepdims or with constants of a higher rank."""
    for norm in _norms(graph):
        exponent = _constant(graph, norm.power.inputs[1])
        is_square = exponent is None or not exponent.has_static_type or exponent.number == 2
        if is_square and _has_another_shape(graph, norm):
            return True
    return False


def _has_another_shape(graph: WireGraph, norm: _Norm) -> bool:
    rank = max(1, graph.least_rank(norm.power.inputs[0]))
    constants = (_constant(graph, name) for name in (norm.power.inputs[1], norm.epsilon))
    if any(
        constant is not None and (not constant.has_static_type or len(constant.shape) > rank) for constant in constants
    ):
        return True
    return graph.integer(norm.mean, "keepdims", 1) == 0


def _is_reversed(graph: WireGraph, node: WireNode) -> bool:
    first, second = (_producer(graph, name, "ReduceMean") for name in node.inputs)
    if second is None:
        return first is not None
    if first is not None and _root(graph, first.inputs[0]) == _root(graph, node.inputs[1]):
        return True
    return graph.integer(second, "keepdims", 1) == 0


def _norms(graph: WireGraph) -> Iterator[_Norm]:
    for numerator, name in _quotients(graph):
        root = _producer(graph, name, "Sqrt")
        total = _producer(graph, root.inputs[0], "Add") if root else None
        if root is None or total is None:
            continue
        for operand, epsilon in (total.inputs, total.inputs[::-1]):
            mean = _producer(graph, operand, "ReduceMean")
            power = _producer(graph, mean.inputs[0], "Pow") if mean else None
            if mean and power:
                yield _Norm(power, mean, epsilon, root, numerator)


def _quotients(graph: WireGraph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        if len(node.inputs) != 2:
            continue
        if node.op_type == "Div":
            yield from ((node.inputs[0], name) for name in node.inputs)
        elif node.op_type == "Mul":
            for name, factor in (node.inputs, node.inputs[::-1]):
                division = _producer(graph, name, "Div")
                if division is not None and len(division.inputs) == 2:
                    yield factor, division.inputs[1]


def _reciprocal(graph: WireGraph) -> bool:
    """Return whether the graph may divide a constant 1 that is an integer, or has a higher rank than the divisor."""
    for node in graph.nodes:
        numerator = _constant(graph, node.inputs[0]) if node.op_type == "Div" else None
        if numerator is None or (numerator.has_static_type and numerator.number != 1):
            continue
        if (
            not numerator.has_static_type
            or numerator.data_type in (INT32, INT64)
            or len(numerator.shape) > graph.least_rank(node.inputs[1])
        ):
            return True
    return False


def _nearly_neutral(graph: WireGraph) -> bool:
    """Return whether a float64 constant rounds to a neutral element in float32, such as 1 for Mul."""
    for node in graph.nodes:
        neutral = _NEUTRAL.get(node.op_type)
        for name in node.inputs if neutral is not None else ():
            constant = graph.constant(name)
            number = constant.number if constant is not None and constant.data_type == DOUBLE else None
            if number is not None and number != neutral and _in_float32(number) == neutral:
                return True
    return False


def _in_float32(number: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return number


def _expand_to_nothing(graph: WireGraph) -> bool:
    targets = (_constant(graph, node.inputs[1]) for node in graph.nodes if node.op_type == "Expand")
    return any(target is not None and 0 in (target.values or ()) for target in targets)


def _quantized_relu(graph: WireGraph) -> bool:
    """Return whether a QuantizeLinear that reads a Relu has a computed or unusually typed zero point."""
    for node in graph.nodes:
        if node.op_type != "QuantizeLinear" or len(node.inputs) < 3:
            continue
        relu, zero_point = _producer(graph, node.inputs[0], "Relu"), graph.constant(node.inputs[2])
        if relu is not None and (zero_point is None or zero_point.data_type not in _INTEGERS):
            return True
    return False


def _requantized(graph: WireGraph) -> bool:
    return any(_parameters(graph, first) != _parameters(graph, second) for first, second in _requantizations(graph))


def _requantized_along(graph: WireGraph) -> bool:
    return any(_layout(graph, first) != _layout(graph, second) for first, second in _requantizations(graph))


def _requantizations(graph: WireGraph) -> Iterator[tuple[WireNode, WireNode]]:
    for second in graph.nodes:
        between = _producer(graph, second.inputs[0], "DequantizeLinear") if second.op_type == "QuantizeLinear" else None
        first = _producer(graph, between.inputs[0], "QuantizeLinear") if between else None
        if first:
            yield first, second


def _parameters(graph: WireGraph, node: WireNode) -> tuple[object, ...]:
    return (*(_constant(graph, name) for name in node.inputs[1:]), _layout(graph, node))


def _layout(graph: WireGraph, node: WireNode) -> tuple[int, ...]:
    scale = _constant(graph, node.inputs[1])
    is_single = scale is not None and not scale.shape
    return () if is_single else (graph.integer(node, "axis", 1), graph.integer(node, "block_size", 0))


def _half_batch(graph: WireGraph) -> bool:
    """Return whether a float16 product of constants may be fused with a Transpose that moves the first dimension.

    `FuseFp16InitializerToFp32NodeTransformer` crashes on this fusion. The nodes need not be adjacent.
    """
    permutations = (graph.integers(node, "perm") for node in graph.nodes if node.op_type == "Transpose")
    return any(len(permutation) > _MATRIX_RANK and permutation[0] != 0 for permutation in permutations) and any(
        _is_half(graph, name) for node in graph.nodes if node.op_type == "MatMul" for name in node.inputs
    )


def _is_half(graph: WireGraph, name: str) -> bool:
    pending, visited, has_half = [name], set[str](), False
    while pending:
        name = pending.pop()
        constant, node = graph.constant(name), graph.producers.get(name)
        if constant is not None and constant.has_static_type:
            has_half |= constant.data_type == FLOAT16
        elif node is None:
            return False
        elif name not in visited:
            visited.add(name)
            has_half |= node.op_type == "Cast" and graph.integer(node, "to", 0) == FLOAT16
            pending.extend(filter(None, node.inputs))
    return has_half


FLAWS = {
    "layer norm": Flaw(("LayerNormFusionL1", "LayerNormFusionL2"), (b"ReduceMean", b"Sqrt", b"Sub"), _layer_norm),
    "RMS norm": Flaw(("SimplifiedLayerNormFusion",), (b"ReduceMean", b"Sqrt", b"Pow"), _rms_norm),
    "reciprocal": Flaw(("DivMulFusion",), (b"Div", b"Mul"), _reciprocal),
    "nearly neutral operand": Flaw(("NoopElimination",), (b"Sub",), _nearly_neutral),
    "empty Expand": Flaw(("ExpandElimination",), (b"Expand",), _expand_to_nothing),
    "quantized Relu": Flaw(("ReluQuantRewrite",), (b"Relu", b"QuantizeLinear"), _quantized_relu),
    "requantization": Flaw(("DoubleQDQPairsRemover",), (b"DequantizeLinear", b"QuantizeLinear"), _requantized),
    "requantization along another axis": Flaw(
        ("TransposeOptimizer", EXTENDED), (b"DequantizeLinear", b"QuantizeLinear"), _requantized_along
    ),
    "float16 batch": Flaw(("MatmulTransposeFusion",), (b"MatMul", b"Transpose"), _half_batch, _MOVED_BATCH),
}


def wrong_fusions(source: str | os.PathLike[str] | bytes) -> tuple[str, ...]:
    """Return the optimizers that break a model (path or contents)."""
    try:
        with mapped(source) as contents:
            return _wrong_fusions(contents)
    except (OSError, ValueError, IndexError, TypeError, RecursionError, struct.error):
        return ()


def _wrong_fusions(contents: Contents) -> tuple[str, ...]:
    is_mentioned = search(contents)
    flaws = [
        flaw
        for flaw in FLAWS.values()
        if all(map(is_mentioned, flaw.words)) and (not flaw.any_word or any(map(is_mentioned, flaw.any_word)))
    ]
    if not flaws:
        return ()
    graphs = read_inlined_graphs(contents)
    return tuple(name for flaw in flaws if any(map(flaw.occurs_in, graphs)) for name in flaw.optimizers)


def _producer(graph: WireGraph, name: str, op_type: str) -> WireNode | None:
    node = graph.producers.get(_root(graph, name))
    return node if node is not None and node.op_type == op_type else None


def _constant(graph: WireGraph, name: str) -> WireConstant | None:
    return graph.constant(name) or graph.constant(_root(graph, name))


def _root(graph: WireGraph, name: str) -> str:
    """Return the value that operators without effect forward as `name`."""
    for _ in range(_LONGEST_CHAIN):
        node = graph.producers.get(name)
        if node is None or not node.inputs:
            break
        if node.op_type in _UNCHANGED:
            name = node.inputs[0]
            continue
        other = _other_operand(graph, node)
        if other is None:
            break
        name = other
    return name


def _other_operand(graph: WireGraph, node: WireNode) -> str | None:
    neutral = _NEUTRAL.get(node.op_type)
    if neutral is None or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if _number(graph, second) == neutral:
        return first
    return second if node.op_type in ("Add", "Mul") and _number(graph, first) == neutral else None


def _number(graph: WireGraph, name: str) -> float | None:
    constant = graph.constant(name)
    return constant.number if constant is not None else None
