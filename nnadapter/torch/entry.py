"""What people call, where PyTorch may be missing: then it says so, and imports nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from nnadapter.errors import NNAdapterError
from nnadapter.torch.requirements import require_torch

if TYPE_CHECKING:
    from nnadapter.torch.compiled_report import TorchReport


def nnadapter(graph_module: Any, example_inputs: Any, **given: Any) -> Callable[..., Any]:
    """Compile a graph that PyTorch captured; `torch.compile(model, backend="nnadapter")` calls it.

    Args:
        graph_module: the graph.
        example_inputs: what it is called with first.
        **given: `options=` of torch.compile, a dictionary: `devices`, as `InferenceSession` takes them, and fields of
            `nnadapter.Options`.

    Returns:
        What PyTorch calls in place of the graph. What is wrong with the options is raised there, as the error that it
        is: PyTorch would make one of its own of what a back end raises.
    """
    try:
        require_torch("torch.compile(backend='nnadapter')")
        from nnadapter.torch.backend import compile_captured

        return compile_captured(graph_module, example_inputs, **given)
    except NNAdapterError as error:
        return partial(_raise, error)


def report(compiled: Any) -> TorchReport:
    """Return what became of a module or function that torch.compile compiled, as far as it was run.

    Args:
        compiled: what torch.compile returned, or what it was given.

    Raises:
        MissingExtraError: PyTorch is missing or too old.
        InvalidOptionError: it is nothing that can be compiled.
    """
    require_torch("a report of a compiled module")
    from nnadapter.torch.reporting import report_compiled

    return report_compiled(compiled)


def _raise(error: NNAdapterError, *_: Any) -> Any:
    raise error
