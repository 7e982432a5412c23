"""Samples of PyTorch's operator database, computed by torch.compile and by eager PyTorch.

Each sample is computed in a worker process, so a crash or an endless computation fails only that sample.
"""

from __future__ import annotations

import itertools
import multiprocessing
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import nnadapter as nna

OPERATORS = {f"{op.name}/{op.variant_test_name}".rstrip("/"): op for op in op_db}
TOLERANCES = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-3, torch.float64: 1e-7}
UNINITIALIZED = ("empty", "new_empty", "empty_like", "empty_strided", "empty_permuted", "new_empty_strided")
SECONDS = 90


@dataclass(frozen=True)
class Task:
    operator: str
    dtype: torch.dtype
    place: int
    gradients: bool = False
    device: str = "fake_npu"
    dynamic: bool = False


@dataclass(frozen=True)
class Outcome:
    kind: str
    """`right`, `wrong`, `strides`, `eager raises`, `raises`, `crash`, `no answer`, or `no sample`."""
    detail: str = ""


def supports(operator: str, dtype: torch.dtype, gradients: bool) -> bool:
    """Return true if an operator has samples of a data type."""
    op = OPERATORS[operator]
    if gradients and not (op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")):
        return False
    return dtype in op.supported_dtypes("cpu")


def outcomes(operators: list[str], dtype: torch.dtype, samples: int, **options) -> Iterator[tuple[Task, Outcome]]:
    """Yield the outcome of the first samples of each operator that has any; one worker computes them in turn."""
    connection = process = None
    for operator in operators:
        if not supports(operator, dtype, options.get("gradients", False)):
            continue
        for place in range(samples):
            task = Task(operator, dtype, place, **options)
            if process is None:
                connection, process = _started()
            outcome = _answer(connection, task)
            if outcome.kind in ("crash", "no answer"):
                process.kill()
                process.join()
                process = None
            if outcome.kind == "no sample":
                break
            yield task, outcome
    if process is not None:
        process.kill()
        process.join()


def _started():
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _answer(connection, task: Task) -> Outcome:
    connection.send(task)
    if not connection.poll(SECONDS):
        return Outcome("no answer", f"none in {SECONDS} s")
    try:
        return connection.recv()
    except EOFError:
        return Outcome("crash", "the worker ended")


def _work(connection) -> None:
    torch.set_num_threads(1)
    known: tuple = ()
    samples: list = []
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        if known != (task.operator, task.dtype, task.gradients):
            known = (task.operator, task.dtype, task.gradients)
            torch.manual_seed(0)
            result = OPERATORS[task.operator].sample_inputs("cpu", task.dtype, requires_grad=task.gradients)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                samples = list(itertools.islice(result, 16))
        connection.send(compare(task, samples[task.place]) if task.place < len(samples) else Outcome("no sample"))


def compare(task: Task, sample) -> Outcome:
    """Compute a sample by PyTorch and by torch.compile, and compare values, data types, shapes and strides."""
    operator = OPERATORS[task.operator]

    def function(first, arguments, named):
        return operator.op(first, *arguments, **named)

    torch._dynamo.reset()
    options = {"devices": [task.device]}
    compiled = torch.compile(function, backend="nnadapter", options=options, dynamic=task.dynamic or None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            expected = _results(function, sample, task.gradients)
        except Exception as error:  # noqa: BLE001  PyTorch itself may refuse the sample
            return Outcome("eager raises", str(error)[:200])
        try:
            found = _results(compiled, sample, task.gradients)
        except Exception as error:  # noqa: BLE001
            return Outcome("raises", f"{type(error).__name__}: {error}"[:300])
    if task.operator in UNINITIALIZED:
        found, expected = ([torch.zeros_like(each) for each in several] for several in (found, expected))
    try:
        _check(found, expected)
    except AssertionError as error:
        return Outcome("wrong", str(error)[:400])
    if [each.stride() for each in found] != [each.stride() for each in expected]:
        return Outcome("strides", str([(a.stride(), b.stride()) for a, b in zip(found, expected, strict=True)])[:300])
    texts = [str(each.message) for each in caught if issubclass(each.category, nna.errors.FallbackWarning)]
    return Outcome("right", texts[0][:200] if texts else _coverage(compiled))


def _coverage(compiled) -> str:
    graphs = nna.torch.report(compiled).graphs
    total, delegated = sum(graph.operators for graph in graphs), sum(graph.delegated for graph in graphs)
    return "none" if not delegated else "all" if delegated == total else "part"


def _results(function, sample, gradients: bool) -> list[torch.Tensor]:
    copies: dict[int, torch.Tensor] = {}

    def copied(value):
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in copies:
            copies[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
        return copies[id(value)]

    arguments = pytree.tree_map(copied, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(1)
    results = [each for each in pytree.tree_leaves(function(*arguments)) if isinstance(each, torch.Tensor)]
    leaves = [copy for copy in copies.values() if copy.requires_grad]
    if gradients and leaves:
        reached = [result for result in results if result.requires_grad]
        weights = [_weights(each) for each in reached]
        made = torch.autograd.grad(reached, leaves, weights, allow_unused=True) if reached else ()
        results = [*results, *(torch.zeros(()) if each is None else each for each in made)]
    return [result.detach().to_dense() if result.layout is not torch.strided else result.detach() for result in results]


def _weights(result: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape)
    return torch.cos(steps).to(result.dtype)


def _check(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), (
            f"{one.dtype}{one.shape}, {other.dtype}{other.shape}"
        )
        tolerance = TOLERANCES.get(other.dtype, 1e-3 if other.dtype.is_complex else 0)
        scale = float(other.abs().nan_to_num(0, 0, 0).max()) if tolerance and other.numel() else 0
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * max(scale, 1e-3) * 0.1, equal_nan=True)
