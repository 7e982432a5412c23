"""Boundary to drivers: checks of everything that a driver is given and returns.

A driver may raise anything and give anything back. Questions (`ask_…`) turn that into a refusal with a reason;
everything else lets errors pass, and raises for answers of the wrong kind.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnadapter import errors
from nnadapter.drivers.capability import Capability, OptionValues, Profile, flaw
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import (
    Admission,
    Compatibility,
    Context,
    Device,
    DeviceTensor,
    Execution,
    Program,
    SegmentModel,
)
from nnadapter.drivers.registry import open_device, open_isolated
from nnadapter.drivers.selection import Selected
from nnadapter.ir.operand import Array
from nnadapter.traces.trace import SILENT, Trace
from partition.graph import SUPPORTED, Reason, Supported, Unsupported, Verdict

OutputCheck = Sequence[tuple[tuple[int | None, ...], np.dtype[Any]] | None]
"""Dimensions and data type that each output must have; None where they are not known before the run."""


def open_context(selected: Selected, trace: Trace = SILENT) -> tuple[Device, Context]:
    """Open a device and create a context on it, whose driver takes note of a trace.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: the device does not exist or cannot be used.
        InvalidOptionError: an option does not fit.
    """
    device, create = _opened(selected)
    try:
        context = named_call(selected.name, "create_context")(create, selected.options)
        if trace.is_recording and isinstance(context, Context):
            context = named_call(selected.name, "with_trace")(context.with_trace, trace, selected.name)
        if not isinstance(context, Context):
            raise TypeError(f"it gave {type(context).__name__}, expected a nnadapter.drivers.Context")
    except errors.NNAdapterError as error:
        errors.located(error, selected.name, "context")
        raise
    except errors.FAILURES as error:
        raise errors.DeviceOpeningError(
            f"device {selected.name!r} did not give a context: {errors.describe(error)}; ask its vendor",
            device=selected.name,
            phase="context",
        ) from error
    return device, context


def _opened(selected: Selected) -> tuple[Device, Callable[[OptionValues], Context]]:
    """The device, and what creates a context on it."""
    if selected.limits is None:
        device = open_device(selected.name)
        return device, device.create_context
    isolated = open_isolated(selected.name, selected.limits.get("open"))
    return isolated, partial(isolated.create_context, limits=selected.limits)


def has_of(name: str, device: Device, attribute: str) -> bool:
    """Return whether a device has memory of its own, or streams, or gets the addresses of inputs.

    Args:
        name: of the device.
        device: that was opened.
        attribute: `has_memory`, `has_streams` or `has_raw_inputs`.

    Raises:
        DeviceUnavailableError: it does not say.
    """
    try:
        return bool(named_call(name, attribute)(getattr, device, attribute))
    except errors.NNAdapterError:
        raise
    except errors.FAILURES as error:
        raise errors.DeviceUnavailableError(
            f"device {name!r} did not say whether it {attribute.replace('_', ' ')}: "
            f"{errors.describe(error)}; ask its vendor"
        ) from error


def ask_supported(context: Context, model: SegmentModel, expected: int) -> Sequence[Verdict]:
    """Return the `expected` verdicts of a context on the operations of a model.

    A driver that raises, or that answers with something else than one verdict per operation, has refused everything.
    """
    try:
        verdicts = list(context.supported(model))
        if len(verdicts) == expected and all(map(_is_verdict, verdicts)):
            return verdicts
        detail = f"the driver gave {len(verdicts)} verdicts for {expected} operations, or one that is none; {_VERDICT}"
    except errors.NNAdapterError as error:
        detail = errors.describe(error)
    except errors.FAILURES as error:
        detail = f"the driver failed when asked: {errors.describe(error)}"
    return [Unsupported(Reason.DRIVER_ERROR, detail)] * expected


def ask_admission(context: Context, model: SegmentModel) -> Admission:
    """Return the answer of a context to a final segment; a driver that raises has refused it."""
    try:
        admission = context.admit(model)
        if isinstance(admission, Admission) and _is_verdict(admission.verdict):
            return admission
        detail = (
            f"the driver gave {type(admission).__name__} when asked for the segment, expected an Admission; {_VERDICT}"
        )
    except errors.NNAdapterError as error:
        detail = errors.describe(error)
    except errors.FAILURES as error:
        detail = f"the driver failed when asked for the segment: {errors.describe(error)}"
    return Admission(verdict=Unsupported(Reason.DRIVER_ERROR, detail))


def ask_compatibility(context: Context, blob: memoryview) -> Compatibility | Unsupported | None:
    """Return what a context says of a program as bytes, None if it does not tell; or why no use is made of it."""
    try:
        compatibility = context.check_blob(blob)
    except errors.FAILURES as error:
        return Unsupported(Reason.DRIVER_ERROR, f"the driver failed when asked about it: {errors.describe(error)}")
    if compatibility is None or isinstance(compatibility, Compatibility):
        return compatibility
    detail = f"the driver gave {type(compatibility).__name__} when asked about it, expected a Compatibility or None"
    return Unsupported(Reason.DRIVER_ERROR, detail)


def ask_profile(context: Context, capability: Capability) -> Profile | Unsupported | None:
    """Return how fast a device says it is, or why that cannot be used; None if it says nothing."""
    try:
        context_profile = context.profile()
    except errors.FAILURES as error:
        return Unsupported(
            Reason.DRIVER_ERROR, f"the driver failed when asked for its profile: {errors.describe(error)}"
        )
    profile = capability.profile if context_profile is None else context_profile
    wrong = "" if profile is None else flaw(profile)
    return (
        Unsupported(Reason.DRIVER_ERROR, f"the device's profile is wrong: {wrong}; ask its vendor")
        if wrong
        else profile
    )


def checked_program(program: object) -> Program:
    """Return what a driver compiled or deserialized.

    Raises:
        CompilationError: it is no program.
        TypeError: what it says of its memory are no numbers.
    """
    if not isinstance(program, Program):
        raise errors.CompilationError(f"the driver gave {type(program).__name__}, expected a Program")
    # What are no numbers fails here, where a failing driver is dealt with.
    for nbytes in (program.memory_bytes, program.execution_bytes, *program.shared_bytes.values()):
        operator.index(nbytes)
    return program


def checked_bytes(blob: object) -> bytes | None:
    """Return what a program was written as; None where its device has no such form.

    Raises:
        DriverError: the driver gave something else.
    """
    if blob is None or isinstance(blob, bytes):
        return blob
    raise errors.DriverError(f"it gave {type(blob).__name__} for a program, expected bytes or None")


def clone_with_constants(context: Context, program: Program, model: SegmentModel) -> Program | None:
    """Return what a driver bound, see `Context.clone_with_constants`.

    Raises:
        CompilationError: it is no program, or the one that was given.
    """
    bound = context.clone_with_constants(program, model)
    if bound is program:
        raise errors.CompilationError(
            "the driver gave back the program that it should bind, expected another one, or None"
        )
    return None if bound is None else checked_program(bound)


def create_execution(program: Program) -> Execution:
    """Return an execution of a program.

    Raises:
        ExecutionError: the driver gave something else, or raised what is no error of ours.
        NNAdapterError: the driver raised it. As all errors that come here it says the phase.
    """
    try:
        execution = program.create_execution()
    except errors.NNAdapterError as error:
        errors.located(error, phase="create")
        raise
    except errors.FAILURES as error:
        raise errors.ExecutionError(errors.describe(error), phase="create") from error
    if not isinstance(execution, Execution):
        raise errors.ExecutionError(
            f"the driver gave {type(execution).__name__}, expected an Execution", phase="create"
        )
    return execution


def use_memory(device: str, call: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of a device's own memory gives.

    Args:
        device: its name.
        call: `allocate`, `copy_in` or `copy_out`.
        function: it.
        arguments: of it.

    Raises:
        ExecutionError: it raised what is no error of ours.
        NNAdapterError: it raised it. As all errors that come here it says device and phase.
    """
    try:
        return named_call(device, call)(function, *arguments)
    except errors.NNAdapterError as error:
        errors.located(error, device, "run")
        raise
    except errors.FAILURES as error:
        raise errors.ExecutionError(
            f"{call} of device {device!r} failed: {errors.describe(error)}; report it to the vendor",
            device=device,
            phase="run",
        ) from error


def read_only(array: Array) -> Array:
    """Return `array` as drivers get it: contiguous, and not to be written to; copied only where it must be."""
    # A scalar is contiguous; ascontiguousarray would give it an axis.
    view = array.view() if array.flags.c_contiguous else np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


def copied(array: Array) -> Array:
    """Return a copy of `array` as drivers get it: whatever they do to it, nobody else sees it."""
    copy = array.copy()  # in the order of C
    copy.setflags(write=False)
    return copy


def check_results(results: Sequence[Any], names: Sequence[str], expected: OutputCheck) -> Sequence[Array]:
    """Return what a driver computed.

    Raises:
        ExecutionError: other outputs than expected, in number, kind, type or shape.
    """
    if len(results) != len(expected):
        raise errors.ExecutionError(f"the driver gave {len(results)} outputs, expected {len(expected)}")
    for name, result, check in zip(names, results, expected, strict=True):
        if type(result) is not np.ndarray:
            raise errors.ExecutionError(f"the driver gave {type(result).__name__} for {name!r}, expected a numpy array")
        if check is None or (result.shape == check[0] and result.dtype == check[1]):
            continue
        if result.dtype != check[1] or not _fits(result.shape, check[0]):
            raise errors.ExecutionError(_mismatch(name, result.dtype, result.shape, *check))
    return results


def check_tensors(
    computed: Sequence[Any], names: Sequence[str], expected: OutputCheck, input_tensors: Sequence[DeviceTensor]
) -> Sequence[DeviceTensor]:
    """Return what a driver computed into its device's memory, from the tensors that it was `input_tensors`.

    Raises:
        ExecutionError: other outputs than expected, in number, kind, type or shape, or not each in memory of its own.
    """
    memory_ids = {id(tensor.memory) for tensor in input_tensors}
    if len(computed) != len(expected):
        raise errors.ExecutionError(f"the driver gave {len(computed)} outputs, expected {len(expected)}")
    for name, tensor, check in zip(names, computed, expected, strict=True):
        if not isinstance(tensor, DeviceTensor):
            raise errors.ExecutionError(
                f"the driver gave {type(tensor).__name__} for {name!r}, expected a DeviceTensor"
            )
        if check is not None and not (tensor.dtype == check[1] and _fits(tensor.shape, check[0])):
            raise errors.ExecutionError(_mismatch(name, tensor.dtype, tensor.shape, *check))
        if id(tensor.memory) in memory_ids:
            raise errors.ExecutionError(
                f"the driver gave the memory of an input, or of another output, for {name!r}, expected new memory"
            )
        memory_ids.add(id(tensor.memory))
    return computed


def _mismatch(
    name: str, dtype: np.dtype[Any], shape: Sequence[int], expected: Sequence[int | None], wanted_dtype: np.dtype[Any]
) -> str:
    expected_shape = ["any" if size is None else size for size in expected]
    return f"the driver gave {dtype}{list(shape)} for {name!r}, expected {wanted_dtype}{expected_shape}"


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    if len(shape) != len(expected):
        return False
    for size, expected_size in zip(shape, expected):  # noqa: B905  as long; and open sizes come here at every run
        if expected_size is not None and size != expected_size:
            return False
    return True


def blamed_nodes(error: BaseException, count: int) -> dict[int, Unsupported]:
    """Why, by position, for those of `count` nodes that a driver blames for what it did not compile."""
    refused = error.refused if isinstance(error, errors.CompilationError) else {}
    return {
        position: refusal
        for position, refusal in refused.items()
        if isinstance(position, int)
        and 0 <= position < count
        and isinstance(refusal, Unsupported)
        and _is_verdict(refusal)
    }


_VERDICT = "a verdict is SUPPORTED, or Unsupported of a Reason and a text"


def _is_verdict(verdict: object) -> bool:
    if verdict is SUPPORTED:  # most are
        return True
    if isinstance(verdict, Unsupported):
        return isinstance(verdict.reason, Reason) and isinstance(verdict.detail, str)
    return isinstance(verdict, Supported)
