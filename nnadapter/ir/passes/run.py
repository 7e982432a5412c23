"""Passes by name, and how a list of them is applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from nnadapter.errors import InvalidModelError, InvalidOptionError, PassError, close_names
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import Model
from nnadapter.ir.passes.composite_fusion import (
    fuse_attention,
    fuse_gelu,
    fuse_hard_swish,
    fuse_layer_normalization,
    fuse_swish,
)
from nnadapter.ir.passes.fold_constants import fold_constants
from nnadapter.ir.passes.layout import cancel_transposes, channels_last
from nnadapter.ir.passes.legalization import matmul_to_fully_connected, quantized_to_real, symmetric_to_asymmetric
from nnadapter.ir.passes.producer_fusion import fuse_activation, fuse_batch_normalization, fuse_pad, fuse_scale_and_bias
from nnadapter.ir.passes.reduce_rank import reduce_rank
from nnadapter.ir.passes.simplification import common_subexpressions, remove_dead, remove_identities, simplify
from nnadapter.ir.rewrite import edit_of

_Input = TypeVar("_Input")
_Output = TypeVar("_Output")
Pass = Callable[[Model], Model]
"""A transformation: the same object if nothing changed, else a new model with the same inputs and outputs.

Those that are made by `ir.rewrite.editing` edit a model that others edited before, so that it is made once for all."""

Observer = Callable[[str, Model, Model], None]
"""Called after each pass with its name, the model before and the model after."""

PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        each.__name__: each
        for each in (
            remove_dead,
            fold_constants,
            simplify,
            remove_identities,
            common_subexpressions,
            fuse_layer_normalization,
            fuse_gelu,
            fuse_hard_swish,
            fuse_swish,
            fuse_attention,
            matmul_to_fully_connected,
            fuse_scale_and_bias,
            fuse_batch_normalization,
            fuse_activation,
            fuse_pad,
            reduce_rank,
            cancel_transposes,
            channels_last,
            symmetric_to_asymmetric,
            quantized_to_real,
        )
    }
)
"""Every pass by its name, in an order that suits a driver that wants them all: spelled-out operations are put
together before their parts are folded into others, and the layout changes after that. The last two are for devices
without signed operands, and without integer arithmetic beside products."""


def run_passes(
    model: Model,
    passes: Sequence[str | Pass],
    check: Observer | None = None,
    *,
    driver_passes: Mapping[str, Pass] = MappingProxyType({}),
) -> Model:
    """Apply passes in the given order; those that edit share an editor, unless somebody looks at every step.

    Args:
        model: left as it is.
        passes: names from `driver_passes` or `PASSES`, or functions.
        check: sees every step, to dump it or to compare numbers, see `ir.passes.dump` and `ir.passes.check`; it raises
            to stop.
        driver_passes: the driver's passes by name, or `{"reduce_rank": partial(reduce_rank, largest=5)}`.
            They go before those of the same name in `PASSES`.

    Raises:
        InvalidOptionError: there is no pass of that name.
        PassError: a pass made something that is no sound model, or no model.
    """
    editor = None
    for name, function in [_named(pass_or_name, driver_passes) for pass_or_name in passes]:
        edit = edit_of(function) if check is None else None
        if edit is not None:
            editor = editor or ModelEditor(model)
            _call_pass(name, edit, editor)
            continue
        if editor is not None:
            model, editor = editor.finish(), None
        result = _applied(name, function, model)
        if check is not None:
            check(name, model, result)
        model = result
    return model if editor is None else editor.finish()


def _applied(name: str, function: Pass, model: Model) -> Model:
    result = _call_pass(name, function, model)
    if not isinstance(result, Model):
        raise PassError(
            f"pass {name!r} returned {type(result).__name__}, expected a Model, the same one if nothing changed",
            name=name,
        )
    return result


def _call_pass(name: str, function: Callable[[_Input], _Output], argument: _Input) -> _Output:
    """What a function makes of something; what it finds wrong is told with the pass's name."""
    try:
        return function(argument)
    except InvalidModelError as error:
        raise PassError(f"pass {name!r} failed: {error}", name=name) from error


def all_of(*observers: Observer) -> Observer:
    """One observer that tells several, in their order."""

    def observe(name: str, original: Model, result: Model) -> None:
        for observer in observers:
            observer(name, original, result)

    return observe


def _named(pass_or_name: str | Pass, driver_passes: Mapping[str, Pass]) -> tuple[str, Pass]:
    if not isinstance(pass_or_name, str):
        return getattr(pass_or_name, "__name__", repr(pass_or_name)), pass_or_name
    function = driver_passes.get(pass_or_name) or PASSES.get(pass_or_name)
    if function is None:
        raise InvalidOptionError(
            f"there is no pass {pass_or_name!r}; {close_names(pass_or_name, {**PASSES, **driver_passes})}"
        )
    return pass_or_name, function
