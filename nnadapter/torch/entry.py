"""What people call, where PyTorch may be missing: then it says so, and imports nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidOptionError, NNAdapterError
from nnadapter.torch.requirements import other_torch, require_torch

if TYPE_CHECKING:
    from nnadapter.torch.compiled_report import TorchReport


def nnadapter(graph_module: Any, example_inputs: Any, **keywords: Any) -> Callable[..., Any]:
    """Compile a graph that PyTorch captured; `torch.compile(model, backend="nnadapter")` calls it.

    Args:
        graph_module: the graph.
        example_inputs: what it is called with first.
        **keywords: `options=` of torch.compile, a dictionary: `devices`, as `InferenceSession` takes them, and fields
            of `nnadapter.Options`.

    Returns:
        What PyTorch calls in place of the graph. What is wrong with the options is raised there, as the error that it
        is: PyTorch would make one of its own of what a back end raises.
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
    """Make the parameters and buffers of a module live on a device, and return the module.

    As `module.to(...)` for PyTorch's own devices: it comes before the optimizer is made, and gradients and the state of
    optimizers are there as well. What reads one of them gets it from the device. On devices that compute in the host's
    memory, and for tensors that cannot lie elsewhere (complex, sparse, not in rows, without elements), nothing changes.

    Args:
        module: a `torch.nn.Module`; it is changed.
        device: as `InferenceSession` takes it.

    Raises:
        MissingExtraError: PyTorch is missing or too old.
        InvalidOptionError: it is no module.
        DeviceNotFoundError, DeviceUnavailableError: the device does not exist or cannot be used.
        OutOfMemoryError: the device has no room.
    """
    require_torch("a module on a device")
    import torch

    from nnadapter.torch.resident_tensors import move

    if not isinstance(module, torch.nn.Module):
        raise InvalidOptionError(f"what lives on a device is a torch.nn.Module, got {type(module).__name__}")
    move(module, device)
    return module


def report(compiled: Any) -> TorchReport:
    """Return what became of a module or function that torch.compile compiled, as far as it was run.

    Args:
        compiled: what torch.compile returned, or what it was given.

    Raises:
        MissingExtraError: PyTorch is missing or too old.
        InvalidOptionError: it is nothing that can be compiled.
    """
    require_torch("a report of a compiled module")
    from nnadapter.torch.backend import report_compiled

    return report_compiled(compiled)


def _raise(error: NNAdapterError, *_: Any) -> Any:
    raise error
