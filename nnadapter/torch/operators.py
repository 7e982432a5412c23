"""Selection of ATen operators for sessions, and reasons for refusals.

Only this module and `models.py` use internals of the exporter.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import torch
from torch.onnx._internal.exporter import _constants, _decomp, _dispatching, _registration
from torch.ops import aten

import nnadapter.torch.onnx_forms as onnx_forms
from nnadapter.torch.decompositions import DECOMPOSITIONS
from nnadapter.torch.decompositions.indexing import BY_SCALES, depends_on_length, is_whole
from nnadapter.torch.layouts import is_view
from nnadapter.torch.requirements import quiet
from nnadapter.torch.resident_tensors import SESSION_DTYPES
from partition.graph import Reason, Unsupported

_IDLE: Mapping[str, object] = MappingProxyType({"train": False, "training": False, "dropout": 0, "dropout_p": 0})
"""Argument -> value with which an operator draws no random numbers."""
_AVERAGES = frozenset((aten.avg_pool2d.default, aten.avg_pool3d.default))
_SMOOTHED = (aten._upsample_bilinear2d_aa.default, aten._upsample_bicubic2d_aa.default)
_STATISTICS = frozenset(getattr(aten, name) for name in ("mean", "var", "var_mean", "std", "std_mean"))
_OF_AUTOGRAD = frozenset((aten.lift.default, aten.lift_fresh.default))
"""Operators on constants; not decomposed, because AOTAutograd needs and handles them."""
_BY_STRIDES = frozenset((aten.as_strided_scatter.default,))
"""Not decomposed, because PyTorch's decomposition mutates a tensor."""
_OF_SIGNS = frozenset((aten.copysign.Tensor, aten.copysign.Scalar))
"""Not decomposed, because PyTorch's decomposition declares the bool sign bit as a number."""
_BAGS = frozenset((aten.embedding_bag, aten._embedding_bag, aten._embedding_bag_forward_only))
_APPROXIMATE: Mapping[Any, str] = MappingProxyType({
    aten.erfc.default: "1 - erf(x) loses all digits of erfc from 4 on",
    aten.special_erfc.default: "1 - erf(x) loses all digits of erfc from 4 on",
    aten.special_erfcx.default: "exp(x * x) * (1 - erf(x)) differs from erfcx from 3 on",
    aten.logcumsumexp.default: "logcumsumexp underflows before the largest number of its row",
    aten.logdet.default: "the logarithm of a determinant overflows with the determinant",
    aten.unique_consecutive.default: "unique_consecutive drops a first number that is the largest int32",
})  # fmt: skip
"""Operator with an inexact ONNX form in the exporter -> the error of that form."""
_FUNCTIONALIZED = (torch.ops.higher_order.auto_functionalized, torch.ops.higher_order.auto_functionalized_v2)
_SCALING = frozenset(
    getattr(aten, name) for name in ("native_layer_norm", "layer_norm", "native_group_norm", "group_norm")
)
"""Normalizations with a scale, which may be float32 for inputs of lower precision."""


def registry(opset: int = _constants.TORCHLIB_OPSET) -> Any:
    """Return the operator registry of PyTorch's exporter, extended by `onnx_forms`."""
    return _registry(opset, has_quantization=onnx_forms.has_quantization())


def clear_registry() -> None:
    """Clear the cached registries, so that changed forms apply."""
    _registry.cache_clear()


@cache
def _registry(opset: int, *, has_quantization: bool) -> Any:
    """Build the registry, which is slow; it includes quantization if PyTorch has loaded it."""
    with quiet():
        onnx_registry = _registration.ONNXRegistry.from_torchlib(opset)
    onnx_forms.register_recurrence(onnx_registry)
    onnx_forms.register_numbers(onnx_registry)
    onnx_forms.register_forms(onnx_registry)
    return onnx_registry


@cache
def decomposition_table() -> Mapping[Any, Callable[..., Any]]:
    """Return the decompositions to apply before regions are cut."""
    onnx_operators = set(_decomp.get_onnx_implemented_overloads(registry()))
    table = _decomp.create_onnx_friendly_decomposition_table(onnx_operators)
    preserved_operators = _OF_AUTOGRAD | _BY_STRIDES | _OF_SIGNS
    return {
        **{
            overload: _where_steady(overload, decomposition)
            for overload, decomposition in table.items()
            if overload not in preserved_operators
        },
        **DECOMPOSITIONS,
    }


def _where_steady(operator: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Limit the decomposition to calls without random numbers, because it draws other ones."""
    if not _is_seeded(operator):
        return decomposition
    return lambda *arguments, **named: (
        NotImplemented if _draws(operator, arguments, named) else decomposition(*arguments, **named)
    )


def refusal(node: torch.fx.Node) -> Unsupported | None:
    """Return the reason for PyTorch to run an ATen node, or None if a session can run it."""
    return _first(_CHECKS, node)


def name_of(node: torch.fx.Node) -> str:
    """Return `aten.NAME.OVERLOAD`, or a custom operator's name."""
    return str(node.args[0] if node.target in _FUNCTIONALIZED else node.target)


def is_size(node: torch.fx.Node) -> bool:
    """Return True if the value of a node is a number computed from tensor sizes."""
    return _is_whole(node) or is_real(node)


def _is_whole(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, int)) and not isinstance(node.meta["val"], bool)


def is_real(node: torch.fx.Node) -> bool:
    """Return True if the value of a node is a real number computed from tensor sizes."""
    if node.target not in onnx_forms.ARITHMETIC or not isinstance(node.meta.get("val"), torch.SymFloat):
        return False
    return all(map(is_size, node.all_input_nodes))


def computes(node: torch.fx.Node) -> bool:
    """Return True unless the node is a view or selects a result."""
    if node.op != "call_function" or node.target is operator.getitem or not _tensors(node.meta.get("val")):
        return False
    return not is_view(node)


def _refuse_other_kinds(node: torch.fx.Node) -> Unsupported | None:
    if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and not is_size(node):
        return None
    if node.target is operator.getitem:
        return refusal(node.all_input_nodes[0])
    if node.target in _FUNCTIONALIZED:
        return Unsupported(Reason.UNSUPPORTED_OPERATION, "a custom operator that mutates its inputs has no ONNX form")
    detail = "a number computed in Python" if not _tensors(node.meta.get("val")) else "it calls other graphs"
    return Unsupported(Reason.CONTROL_FLOW, detail)


def is_random(node: torch.fx.Node) -> bool:
    """Return True if the node draws random numbers."""
    return _is_seeded(node.target) and _draws(node.target, node.args, node.kwargs)


def _is_seeded(operator: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


def _draws(operator: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    for place, argument in enumerate(operator._schema.arguments):
        if argument.name in _IDLE:
            value = arguments[place] if place < len(arguments) else named.get(argument.name, argument.default_value)
            if value == _IDLE[argument.name]:
                return False
    return True


def _refuse_values(node: torch.fx.Node) -> Unsupported | None:
    for tensor in (*_input_tensors(node), *_tensors(node.meta.get("val"))):
        if tensor.is_complex():
            return Unsupported(_DTYPE, "ONNX has no operators on complex numbers")
        if tensor.dtype not in SESSION_DTYPES:
            return Unsupported(_DTYPE, f"sessions do not support tensors of {tensor.dtype}")
        if tensor.device.type != "cpu":
            return Unsupported(_TYPE, f"a tensor is on {tensor.device}, but sessions take tensors on the CPU")
        if tensor.layout is not torch.strided:
            return Unsupported(_TYPE, f"a tensor of layout {tensor.layout} has no form in ONNX")
    return None


def _refuse_numbers(node: torch.fx.Node) -> Unsupported | None:
    for input_node in node.all_input_nodes:
        if "val" not in input_node.meta:
            return Unsupported(_TYPE, f"the operator reads a result of {input_node.target} with unknown type")
        if is_real(input_node) and _is_real_alone(node):
            continue
        if isinstance(input_node.meta["val"], (torch.SymFloat, torch.SymBool)):
            return Unsupported(_TYPE, "the operator reads a number that is known only at run time")
    return None


def _is_real_alone(node: torch.fx.Node) -> bool:
    values = (*_input_tensors(node), *_tensors(node.meta["val"]))
    return {tensor.dtype for tensor in values} in ({torch.float32}, {torch.float64})


def _refuse_approximations(node: torch.fx.Node) -> Unsupported | None:
    detail = _APPROXIMATE.get(node.target)
    return None if detail is None else Unsupported(_OPERATION, f"the ONNX form of the operator is inexact: {detail}")


def divisor_of(node: torch.fx.Node) -> Any:
    """Return the divisor of an average pool, or None."""
    return node.args[6] if len(node.args) > 6 else node.kwargs.get("divisor_override")


def _has_empty_statistics(node: torch.fx.Node) -> bool:
    if _packet(node) not in _STATISTICS or not any(map(_is_empty, _input_tensors(node))):
        return False
    return not all(map(_is_empty, _tensors(node.meta.get("val"))))


def _smooths_by_scale(node: torch.fx.Node) -> bool:
    """Return True for antialiased resizing by scales; the exporter drops scales."""
    if node.target not in _SMOOTHED:
        return False
    _, size, _, *scales = node.args
    return not all(map(_is_kept, scales, size, _lengths(node.args[0])))


def _is_kept(scale: float | None, size: Any, length: Any) -> bool:
    if scale is None or is_whole(scale):
        return True
    return isinstance(size, int) and isinstance(length, int) and length * scale == size


def _may_keep_length(node: torch.fx.Node) -> bool:
    """Return True if a scale other than 1 may leave a length unchanged: then ONNX resamples, but PyTorch does not."""
    if node.target not in BY_SCALES or not node.args[-1]:
        return False
    sized = zip(node.args[-1], _lengths(node.args[0]), _lengths(node), strict=True)
    return any(
        depends_on_length(scale, length) or (scale != 1 and isinstance(size, int) and size == length)
        for scale, length, size in sized
    )


def _lengths(node: torch.fx.Node) -> Sequence[Any]:
    lengths: Sequence[Any] = _tensors(node.meta["val"])[0].shape[2:]
    return lengths


def _reads_probabilities(node: torch.fx.Node) -> bool:
    if node.target is not aten.cross_entropy_loss.default:
        return False
    return bool(node.args[1].meta["val"].is_floating_point())


def _reads_signs(node: torch.fx.Node) -> bool:
    if node.target is not aten.signbit.default:
        return False
    return bool(_input_tensors(node)[0].is_floating_point())


def _is_empty(tensor: Any) -> bool:
    return any(isinstance(size, int) and size == 0 for size in tensor.shape)


def _saves_other_statistics(node: torch.fx.Node) -> bool:
    if node.target is not aten.native_layer_norm.default or not _reads_further(node):
        return False
    return node.meta["val"][1].dtype is not torch.float32


def _reads_further(node: torch.fx.Node) -> bool:
    return any(user.target is operator.getitem and user.args[1] != 0 for user in node.users)


def _reads_further_of(target: Any, node: torch.fx.Node) -> bool:
    return node.target is target and _reads_further(node)


Check = Callable[[torch.fx.Node], Unsupported | None]
_OPERATION, _DTYPE, _TYPE = Reason.UNSUPPORTED_OPERATION, Reason.UNSUPPORTED_DTYPE, Reason.UNSUPPORTED_TYPE


def _first(checks: Iterable[Check], node: torch.fx.Node) -> Unsupported | None:
    refusals = (check(node) for check in checks)
    return next((refused for refused in refusals if refused is not None), None)


def _refuse_if(holds: Callable[[torch.fx.Node], bool], detail: str, reason: Reason = _OPERATION) -> Check:
    return lambda node: Unsupported(reason, detail) if holds(node) else None


_OTHERWISE = (
    _refuse_if(
        lambda node: node.target in _AVERAGES and divisor_of(node) is not None,
        "ONNX average pools have no divisor attribute",
    ),
    _refuse_if(
        lambda node: "shift" in str(node.target) and getattr(node.meta.get("val"), "dtype", None) is torch.uint8,
        "PyTorch's exporter writes shifts of uint8 as shifts of int8",
        _DTYPE,
    ),
    _refuse_if(_has_empty_statistics, "statistics of empty tensors are NaN in PyTorch only"),
    _refuse_if(
        lambda node: node.target in _SMOOTHED and bool(node.args[2]),
        "antialiasing with aligned corners differs in ONNX",
    ),
    _refuse_if(_smooths_by_scale, "antialiasing by a scale with rounded sizes differs in ONNX"),
    _refuse_if(_may_keep_length, "a scale that may keep a length differs in ONNX"),
    _refuse_if(
        lambda node: node.target is aten.cross_entropy_loss.default and len(node.args) > 5 and bool(node.args[5]),
        "losses with smoothed labels have no form in ONNX",
    ),
    _refuse_if(_reads_probabilities, "losses with class probabilities have no form in ONNX"),
    _refuse_if(
        lambda node: node.target is aten.hamming_window.default and not isinstance(node.args[0], int),
        "Hamming windows have other coefficients in ONNX",
    ),
    _refuse_if(
        lambda node: _packet(node) in _SCALING and len({tensor.dtype for tensor in _input_tensors(node)}) > 1,
        "ONNX has no normalization with a scale of another type",
        _DTYPE,
    ),
    _refuse_if(
        lambda node: _packet(node) in _BAGS and _reads_further(node),
        "PyTorch's exporter omits the offsets of bags, which the gradient reads",
    ),
    _refuse_if(_reads_signs, "PyTorch's exporter writes the sign of -0.0 as that of 0.0"),
    _refuse_approximations,
    _refuse_if(
        partial(_reads_further_of, aten._linalg_det.default),
        "ONNX has no LU factors of a determinant, which its gradient reads",
    ),
)


def wrong_form(node: torch.fx.Node) -> Unsupported | None:
    """Return a refusal if the exporter's ONNX form of a node differs from PyTorch's operator, otherwise None."""
    return _first(_OTHERWISE, node)


_CHECKS: tuple[Check, ...] = (
    _refuse_other_kinds,
    _refuse_if(is_random, "random numbers come from PyTorch's generator"),
    _refuse_values,
    _refuse_numbers,
    _refuse_if(
        lambda node: str(node.target).startswith(("aten.empty", "aten.new_empty")), "it returns uninitialized memory"
    ),
    _refuse_if(
        lambda node: node.target is aten.as_strided.default,
        "it accesses memory by strides, which tensors of sessions do not have",
    ),
    wrong_form,
    _refuse_if(
        partial(_reads_further_of, aten._native_batch_norm_legit_no_training.default),
        "statistics saved at inference are empty, but not in ONNX",
    ),
    _refuse_if(_saves_other_statistics, "ONNX has the mean and deviation of layer norm in float32 only", _DTYPE),
    _refuse_if(
        lambda node: node.target is not operator.getitem and _dispatching.dispatch(node, registry())[0] is None,
        "PyTorch's exporter has no ONNX form for it",
    ),
)


def _packet(node: torch.fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def _input_tensors(node: torch.fx.Node) -> list[Any]:
    return [tensor for input_node in node.all_input_nodes for tensor in _tensors(input_node.meta.get("val"))]


def _tensors(value: object) -> list[Any]:
    return list(_each_tensor(value))


def _each_tensor(value: object) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for element in value:
            yield from _each_tensor(element)
