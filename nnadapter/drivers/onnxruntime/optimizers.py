"""Sessions with fewer optimizations, for models that ONNX Runtime's optimizers break.

`ConstantFolding` puts the branch that is taken in the place of an `If` whose condition is constant. Where another `If`
is inside, that may end the process (seen with 1.32). Preparation leaves such an `If` if its branch contradicts itself.
Optimizers that compute wrong results are in `fusions.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from nnadapter.drivers.onnxruntime.errors import brief
from nnadapter.errors import DriverWarning

if TYPE_CHECKING:
    import onnx
    import onnxruntime

_Result = TypeVar("_Result")
FEWER_OPTIMIZATIONS = "fewer optimizations"
"""The beginning of notes that give the optimization level that runs, and the reason."""
DISABLED_OPTIMIZERS = "optimization.disable_specified_optimizers"
EXTENDED = "extended optimizations"
"""Stands among disabled optimizers for all above the level ORT_ENABLE_BASIC, some of which have no name."""
_MOST_ATTEMPTS = 3
"""Failed runs of one program that are repeated without optimizations; feeds may be at fault as well."""


def disabled_optimizers(
    options: onnxruntime.SessionOptions | None, wrong: Iterable[str], caller_disabled: Iterable[str] = ()
) -> list[str]:
    """Return the optimizers to disable: wrong ones and the caller's, which a session's argument would replace.

    Args:
        options: the caller's session options.
        wrong: optimizers that compute something else than the model.
        caller_disabled: the caller's `disabled_optimizers`.
    """
    names = dict.fromkeys(wrong)
    if not names:
        return list(caller_disabled)
    try:
        entry = options.get_session_config_entry(DISABLED_OPTIMIZERS) if options is not None else ""
    except RuntimeError:  # it has none
        entry = ""
    return list(names | dict.fromkeys(caller_disabled) | dict.fromkeys(filter(None, entry.split(";"))))


def with_fewer_optimizations(
    options: onnxruntime.SessionOptions, attempt: Callable[[], _Result], problem: str, error: Exception
) -> tuple[_Result, str]:
    """Return what succeeds at the highest lower optimization level, and a note of the level, which is a warning, too.

    Args:
        options: session options; their level is another one during the attempts.
        attempt: loads a model with these options, and perhaps runs it.
        problem: what failed, the beginning of a sentence.
        error: what failed with the level of the options. It is raised if the unoptimized model fails as well.
    """
    from nnadapter.process.real_onnxruntime import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    highest = options.graph_optimization_level
    unoptimized = levels.ORT_DISABLE_ALL
    if highest == unoptimized or not _may_come_of_optimizers(error):
        raise error
    try:
        with _at_level(options, unoptimized):
            result = attempt()
    except Exception:  # noqa: BLE001  the model or its inputs are at fault, and the first error says how
        raise error from None
    chosen = unoptimized
    for level in (levels.ORT_ENABLE_EXTENDED, levels.ORT_ENABLE_BASIC):
        if int(level) >= int(highest):
            continue
        try:
            with _at_level(options, level):
                result = attempt()
        except Exception:  # noqa: BLE001  it fails for the same reason, or another one
            continue
        chosen = level
        break
    note = (
        f"{FEWER_OPTIMIZATIONS}: {problem} at optimization level {highest.name} ({brief(error)}), "
        f"so it runs at {chosen.name}"
    )
    warnings.warn(note, DriverWarning, stacklevel=3)
    return result, note


def unoptimized() -> onnxruntime.SessionOptions:
    """Return session options without optimizations."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


class UnoptimizedRuns:
    """Repeats failed runs of one program without optimizations, until one of them succeeds."""

    def __init__(self) -> None:
        self._attempts = 0

    def allows(self, error: Exception) -> bool:
        """Return whether a failed run is repeated. The answer counts as an attempt."""
        if self._attempts >= _MOST_ATTEMPTS or not _may_come_of_optimizers(error):
            return False
        self._attempts += 1
        return True


def _may_come_of_optimizers(error: Exception) -> bool:
    """Return whether an error of ONNX Runtime may come of its optimizers."""
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    kinds = (native.InvalidArgument, native.Fail, native.RuntimeException, native.NotImplemented)
    return isinstance(error, kinds) and "terminate flag" not in str(error)


@contextmanager
def without_extended(options: onnxruntime.SessionOptions, disabled: Iterable[str]) -> Iterator[None]:
    """Lower the optimization level of session options for a while if extended optimizations are disabled."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    level, basic = options.graph_optimization_level, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with _at_level(options, basic if EXTENDED in disabled and int(level) > int(basic) else level):
        yield


@contextmanager
def _at_level(options: onnxruntime.SessionOptions, level: Any) -> Iterator[None]:
    original_level, options.graph_optimization_level = options.graph_optimization_level, level
    try:
        yield
    finally:
        options.graph_optimization_level = original_level


def wrong_optimizers(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the optimizers that may end the process when they load a model.

    Source: ONNX Runtime 1.31, core/optimizer/constant_folding.cc.
    """
    from nnadapter.onnx.nodes import with_nested

    choices = [node for node in with_nested(model.graph.node) if node.op_type == "If"]
    initializer_names = {tensor.name for tensor in model.graph.initializer} if len(choices) > 1 else ()
    return (
        ("ConstantFolding",)
        if any(node.input[0] in initializer_names and _holds_choice(node) for node in choices)
        else ()
    )


def _holds_choice(node: onnx.NodeProto) -> bool:
    from nnadapter.onnx.nodes import with_nested

    return any(inner.op_type == "If" for inner in islice(with_nested([node]), 1, None))
