"""Entry points of `nnadapter.torch`, which import PyTorch only when they are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidOptionError, NNAdapterError
from nnadapter.torch.requirements import other_torch, require_torch

if TYPE_CHECKING:
    from nnadapter.torch.compiled_report import TorchReport


def nnadapter(graph_module: Any, example_inputs: Any, **keywords: Any) -> Callable[..., Any]:
    """Compile a captured graph; `torch.compile(model, backend="nnadapter")` calls this.

    `options=` of torch.compile is a dictionary with `devices`, as for `InferenceSession`, and fields of
    `nnadapter.Options`.

    Returns:
        A function that PyTorch calls in place of the graph. Errors in the options are raised by its first call, because
        PyTorch would replace errors raised now.
    """
    try:
        require_torch("torch.compile(backend='nnadapter')")
        try:
            from nnadapter.torch.backend import compile_captured
        except ImportError as error:
            raise other_torch("torch.compile(backend='nnadapter')", error) from error
        return compile_captured(graph_module, example_inputs, **keywords)
    except NNAdapterError as error:
        return partial(_raise, error)


def to_device(module: Any, device: str) -> Any:
    """Move the parameters and buffers of a module to a device, in place, and return the module.

    Like `module.to(...)` for PyTorch's own devices. Call it before creating the optimizer: gradients and optimizer
    state are then on the device too. Nothing changes on devices that compute in host memory, and for complex, sparse,
    non-contiguous and empty tensors.

    Raises:
        MissingExtraError: PyTorch is missing or too old.
        InvalidOptionError: `module` is not a module.
        DeviceNotFoundError, DeviceUnavailableError: the device does not exist or cannot be used.
        OutOfMemoryError: the device has too little memory.
    """
    require_torch("a module on a device")
    import torch

    from nnadapter.torch.resident_tensors import move

    if not isinstance(module, torch.nn.Module):
        raise InvalidOptionError(f"to_device needs a torch.nn.Module, got {type(module).__name__}")
    move(module, device)
    return module


def report(compiled: Any) -> TorchReport:
    """Report the present state of a module or function that torch.compile compiled.

    Args:
        compiled: the argument or the result of torch.compile.

    Raises:
        MissingExtraError: PyTorch is missing or too old.
        InvalidOptionError: `compiled` is not callable.
    """
    require_torch("a report of a compiled module")
    from nnadapter.torch.backend import report_compiled

    return report_compiled(compiled)


def _raise(error: NNAdapterError, *_: Any) -> Any:
    raise error
