"""PyTorch modules and exported programs as ONNX models, whole, by PyTorch's own exporter."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidModelError, InvalidOptionError
from nnadapter.torch_models.quiet import quiet
from nnadapter.torch_models.requirements import other_torch, require_torch

if TYPE_CHECKING:
    import onnx

_INSTEAD = "torch.compile(module, backend='nnadapter')"


def model_of(module: Any, example_inputs: object = None) -> onnx.ModelProto:
    """Return a module, or an exported program, as an ONNX model.

    Args:
        module: the module, as it is: `eval()` is up to the person, and where it matters, training mode is refused. An
            exported program may have open sizes.
        example_inputs: what the module is called with: a tuple, a dictionary of keywords, or one tensor. None for an
            exported program, which has its own.

    Raises:
        MissingExtraError: PyTorch or its exporter is missing or too old.
        InvalidOptionError: the inputs are missing.
        InvalidModelError: it cannot be captured or exported, changes what it is given or its buffers, or draws random
            numbers.
    """
    require_torch("a PyTorch module as a model")
    import torch

    if not isinstance(module, torch.export.ExportedProgram):
        if example_inputs is None:
            raise InvalidOptionError(
                "a module is captured by calling it; give inputs: "
                f"InferenceSession({type(module).__name__.lower()}, (x,)), or what torch.export.export makes of both"
            )
        return _exported(type(module).__name__, _captured(_on_host(module), example_inputs))
    return _exported("the program", module)


def _on_host(module: Any) -> Any:
    """A module with its tensors in the host's memory, which the exporter reads: a copy, if some live on a device."""
    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module) if any(hasattr(tensor, "held") for tensor in tensors) else module


def _captured(module: Any, example_inputs: object) -> Any:
    """A module as an exported program."""
    import torch

    named = dict(example_inputs) if isinstance(example_inputs, Mapping) else {}
    row = () if named else example_inputs
    arguments = tuple(row) if isinstance(row, (tuple, list)) else (row,)
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(module, arguments, named)
    except Exception as error:  # whatever the module raises, or PyTorch cannot capture
        raise InvalidModelError(
            f"PyTorch cannot capture {type(module).__name__} as one graph: {_text(error)}; {_INSTEAD} takes it in parts"
        ) from error


def _exported(name: str, program: Any) -> onnx.ModelProto:
    """An exported program as a model: operators are written as those of compiled graphs, and refused for the same."""
    import torch

    try:
        from nnadapter.torch_models.exporter import export_program
        from nnadapter.torch_models.operators import decomposition_table
        from nnadapter.torch_models.promotion import WrongType
    except ImportError as error:
        raise other_torch("a PyTorch module as a model", error) from error
    try:
        with quiet(), torch.no_grad():
            program = program.run_decompositions(dict(decomposition_table()))
            _refuse_changes(name, program.graph_signature)
            _refuse_others(name, program.graph.nodes)
            likes = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
            model = export_program(program)
            _keep_types(model, likes)
    except (torch.onnx.OnnxExporterError, WrongType) as error:
        raise InvalidModelError(
            f"PyTorch's exporter cannot write {name} as ONNX: {_text(error)}; {_INSTEAD} leaves in PyTorch what has no "
            "form there"
        ) from error
    return model


def _refuse_changes(name: str, signature: Any) -> None:
    """A session keeps no state: batch normalization in training would change its statistics."""
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise InvalidModelError(
            f"{name} changes {changed[0]!r} when it is called, which sessions do not; call eval() if it is in training "
            f"mode, or use {_INSTEAD}"
        )


def _refuse_others(name: str, nodes: Iterable[Any]) -> None:
    """Operators that the exporter writes as another function."""
    from nnadapter.torch_models.operators import is_random, written_otherwise

    for node in nodes:
        reason = written_otherwise(node)
        if reason is not None or is_random(node):
            detail = (
                "it draws random numbers; call eval() if it is in training mode" if reason is None else reason.detail
            )
            raise InvalidModelError(
                f"{node.target} in {name} cannot be part of a session: {detail}; {_INSTEAD} runs it in PyTorch"
            )


def _keep_types(model: onnx.ModelProto, likes: Mapping[str, Any]) -> None:
    """Results have PyTorch's data types; the exporter gives wider ones for sums of 16-bit numbers."""
    from nnadapter.torch_models.promotion import keep_type

    for value in model.graph.output:
        if value.name in likes and not isinstance(likes[value.name], (tuple, list)):
            keep_type(model.graph, value, likes[value.name])


def _text(error: BaseException | None) -> str:
    """What the innermost cause says, in one line."""
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
