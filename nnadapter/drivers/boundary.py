"""Checked calls into drivers, which may raise and return anything.

Queries (`ask_*`) turn failures into refusals with a reason. Other calls pass NNAdapterErrors on and raise for wrong
results.
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
"""Expected dimensions and data type per output; None if unknown before the run."""


def open_context(selected: Selected, trace: Trace = SILENT) -> tuple[Device, Context]:
    """Open a device and create a context that records into `trace`."""
    device, create = _opened(selected)
    try:
        context = named_call(selected.name, "create_context")(create, selected.options)
        if trace.is_recording and isinstance(context, Context):
            context = named_call(selected.name, "with_trace")(context.with_trace, trace, selected.name)
        if not isinstance(context, Context):
            raise TypeError(f"create_context returned {type(context).__name__}, expected a nnadapter.drivers.Context")
    except errors.NNAdapterError as error:
        errors.located(error, selected.name, "context")
        raise
    except errors.FAILURES as error:
        raise errors.DeviceOpeningError(
            f"device {selected.name!r} did not create a context: {errors.describe(error)}; ask its vendor",
            device=selected.name,
            phase="context",
        ) from error
    return device, context


def _opened(selected: Selected) -> tuple[Device, Callable[[OptionValues], Context]]:
    if selected.limits is None:
        device = open_device(selected.name)
        return device, device.create_context
    isolated = open_isolated(selected.name, selected.limits.get("open"))
    return isolated, partial(isolated.create_context, limits=selected.limits)


def has_of(name: str, device: Device, attribute: str) -> bool:
    """Return the device's property `attribute`, such as `has_memory`, as a bool."""
    try:
        return bool(named_call(name, attribute)(getattr, device, attribute))
    except errors.NNAdapterError:
        raise
    except errors.FAILURES as error:
        raise errors.DeviceUnavailableError(
            f"device {name!r} failed to report whether it {attribute.replace('_', ' ')}: "
            f"{errors.describe(error)}; ask its vendor"
        ) from error


def ask_supported(context: Context, model: SegmentModel, expected: int) -> Sequence[Verdict]:
    """Return one verdict per operation; refusals if the driver raises or returns anything else."""
    try:
        verdicts = list(context.supported(model))
        if len(verdicts) == expected and all(map(_is_verdict, verdicts)):
            return verdicts
        detail = f"the driver returned {len(verdicts)} verdicts, expected {expected} valid ones; {_VERDICT}"
    except errors.FAILURES as error:
        detail = _failure("judge the model", error)
    return [Unsupported(Reason.DRIVER_ERROR, detail)] * expected


def ask_admission(context: Context, model: SegmentModel) -> Admission:
    """Return the result of `Context.admit`, or a refusal if the driver raises."""
    try:
        admission = context.admit(model)
        if isinstance(admission, Admission) and _is_verdict(admission.verdict):
            return admission
        detail = f"admit returned {type(admission).__name__}, expected an Admission with a verdict; {_VERDICT}"
    except errors.FAILURES as error:
        detail = _failure("judge the segment", error)
    return Admission(verdict=Unsupported(Reason.DRIVER_ERROR, detail))


def _failure(action: str, error: BaseException) -> str:
    text = errors.describe(error)
    return text if isinstance(error, errors.NNAdapterError) else f"the driver failed to {action}: {text}"


def ask_compatibility(context: Context, blob: memoryview) -> Compatibility | Unsupported | None:
    """Return the result of `Context.check_blob`, or a refusal if the driver raises."""
    try:
        compatibility = context.check_blob(blob)
    except errors.FAILURES as error:
        return Unsupported(Reason.DRIVER_ERROR, f"the driver failed in check_blob: {errors.describe(error)}")
    if compatibility is None or isinstance(compatibility, Compatibility):
        return compatibility
    detail = f"the driver returned {type(compatibility).__name__} from check_blob, expected a Compatibility or None"
    return Unsupported(Reason.DRIVER_ERROR, detail)


def ask_profile(context: Context, capability: Capability) -> Profile | Unsupported | None:
    """Return the context's speed profile, by default the capability's; a refusal if invalid."""
    try:
        context_profile = context.profile()
    except errors.FAILURES as error:
        return Unsupported(Reason.DRIVER_ERROR, f"the driver failed to report its profile: {errors.describe(error)}")
    profile = capability.profile if context_profile is None else context_profile
    if profile is not None and (wrong := flaw(profile)):
        return Unsupported(Reason.DRIVER_ERROR, f"the device's profile is invalid: {wrong}; ask its vendor")
    return profile


def checked_program(program: object) -> Program:
    """Check a program's type and sizes, and return it."""
    if not isinstance(program, Program):
        raise errors.CompilationError(f"the driver returned {type(program).__name__}, expected a Program")
    # otherwise it would fail outside the handling of driver errors
    for nbytes in (program.memory_bytes, program.execution_bytes, *program.shared_bytes.values()):
        operator.index(nbytes)
    return program


def checked_bytes(blob: object) -> bytes | None:
    """Check the type of a result of `Program.serialize`, and return it."""
    if blob is None or isinstance(blob, bytes):
        return blob
    raise errors.DriverError(f"serialize returned {type(blob).__name__}, expected bytes or None")


def clone_with_constants(context: Context, program: Program, model: SegmentModel) -> Program | None:
    """Call `Context.clone_with_constants` and check the result."""
    bound = context.clone_with_constants(program, model)
    if bound is program:
        raise errors.CompilationError(
            "clone_with_constants returned the program that it should clone, expected a new program or None"
        )
    return None if bound is None else checked_program(bound)


def create_execution(program: Program) -> Execution:
    """Create an execution; every error carries the phase `create`."""
    try:
        execution = program.create_execution()
    except errors.NNAdapterError as error:
        errors.located(error, phase="create")
        raise
    except errors.FAILURES as error:
        raise errors.ExecutionError(errors.describe(error), phase="create") from error
    if not isinstance(execution, Execution):
        raise errors.ExecutionError(
            f"the driver returned {type(execution).__name__}, expected an Execution", phase="create"
        )
    return execution


def use_memory(device: str, call: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a driver's function for device memory; raised errors name the device."""
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
    """Return a read-only, contiguous view; copy only if necessary."""
    # ascontiguousarray would give a scalar an axis
    view = array.view() if array.flags.c_contiguous else np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


def copied(array: Array) -> Array:
    """Return a read-only copy, safe from writes by native code."""
    copy = array.copy()
    copy.setflags(write=False)
    return copy


def check_results(results: Sequence[Any], names: Sequence[str], expected: OutputCheck) -> Sequence[Array]:
    """Check number, types and shapes of results of `Execution.compute`, and return them."""
    if len(results) != len(expected):
        raise errors.ExecutionError(f"the driver returned {len(results)} outputs, expected {len(expected)}")
    for name, result, check in zip(names, results, expected, strict=True):
        if type(result) is not np.ndarray:
            raise errors.ExecutionError(f"the driver returned {type(result).__name__} for {name!r}, expected an array")
        if check is None or (result.shape == check[0] and result.dtype == check[1]):
            continue
        if result.dtype != check[1] or not _fits(result.shape, check[0]):
            raise errors.ExecutionError(_mismatch(name, result.dtype, result.shape, *check))
    return results


def check_tensors(
    computed: Sequence[Any], names: Sequence[str], expected: OutputCheck, input_tensors: Sequence[DeviceTensor]
) -> Sequence[DeviceTensor]:
    """Check results of `Execution.compute_on_device`, which must be in new memory, and return them."""
    memory_ids = {id(tensor.memory) for tensor in input_tensors}
    if len(computed) != len(expected):
        raise errors.ExecutionError(f"the driver returned {len(computed)} outputs, expected {len(expected)}")
    for name, tensor, check in zip(names, computed, expected, strict=True):
        if not isinstance(tensor, DeviceTensor):
            raise errors.ExecutionError(
                f"the driver returned {type(tensor).__name__} for {name!r}, expected a DeviceTensor"
            )
        if check is not None and not (tensor.dtype == check[1] and _fits(tensor.shape, check[0])):
            raise errors.ExecutionError(_mismatch(name, tensor.dtype, tensor.shape, *check))
        if id(tensor.memory) in memory_ids:
            raise errors.ExecutionError(
                f"the driver returned the memory of an input or of another output for {name!r}, expected new memory"
            )
        memory_ids.add(id(tensor.memory))
    return computed


def _mismatch(
    name: str, dtype: np.dtype[Any], shape: Sequence[int], expected: Sequence[int | None], wanted_dtype: np.dtype[Any]
) -> str:
    expected_shape = ["any" if size is None else size for size in expected]
    return f"the driver returned {dtype}{list(shape)} for {name!r}, expected {wanted_dtype}{expected_shape}"


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    if len(shape) != len(expected):
        return False
    for size, expected_size in zip(shape, expected):  # noqa: B905  same length; runs for dynamic shapes on every call
        if expected_size is not None and size != expected_size:
            return False
    return True


def blamed_nodes(error: BaseException, count: int) -> dict[int, Unsupported]:
    """Return the valid refusals in a CompilationError by node position, which must be below `count`."""
    refused = error.refused if isinstance(error, errors.CompilationError) else {}
    return {
        position: refusal
        for position, refusal in refused.items()
        if isinstance(position, int)
        and 0 <= position < count
        and isinstance(refusal, Unsupported)
        and _is_verdict(refusal)
    }


_VERDICT = "a verdict is SUPPORTED or Unsupported(reason, detail)"


def _is_verdict(verdict: object) -> bool:
    if verdict is SUPPORTED:
        return True
    if isinstance(verdict, Unsupported):
        return isinstance(verdict.reason, Reason) and isinstance(verdict.detail, str)
    return isinstance(verdict, Supported)
