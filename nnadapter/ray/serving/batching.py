"""Batches of requests: queued requests run together, and their results are split again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from nnadapter.errors import DeadlineExceededError, InvalidInputError, NNAdapterError
from nnadapter.ir.operand import Array
from nnadapter.onnx.signature import Signature
from nnadapter.ray.rows import Axis, axis_of, run_rows
from nnadapter.ray.serving.protocol import InferenceRequest
from nnadapter.records import dataclass

Feed = Mapping[str, Array]
Run = Callable[[Sequence[str], Feed, int, float | None], tuple[Sequence[Array], str]]
"""Function that runs a feed of rows within a number of seconds, and returns results and devices."""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """Request in the queue, with its deadline."""

    asked: InferenceRequest
    until: float | None


@dataclass(frozen=True, slots=True)
class RequestResult:
    """Outputs of a request, or its error."""

    results: Mapping[str, Array]
    devices: str = ""
    error: BaseException | None = None


class Batcher:
    """Grouping of requests into runs of at most `most` rows, padded to `compiled_rows` if the model needs it."""

    def __init__(self, signature: Signature, most: int, compiled_rows: int | None) -> None:
        self._signature, self._most = signature, most
        try:
            is_batch = {value.name: True for value in signature.inputs if value.shape}
            is_batchable = len(is_batch) == len(signature.inputs) > 0
            axis = axis_of(signature, signature.output_names, is_batch, compiled_rows) if is_batchable else None
        except InvalidInputError:
            axis = None
        joins = axis is not None and len(axis.stripped) == len(signature.outputs) and axis.most in (None, compiled_rows)
        self._axis: Axis | None = axis if joins else None
        """Place of rows in a shared run; None if each request runs alone."""

    def groups(self, waiting: Sequence[QueuedRequest]) -> Iterator[list[int]]:
        groups: dict[object, list[int]] = {}
        rows: dict[object, int] = {}
        for position, queued_request in enumerate(waiting):
            count = self._rows(queued_request.asked)
            key = _key(queued_request.asked) if count is not None else position
            if key in groups and rows[key] + (count or 0) > self._most:
                yield groups.pop(key)
            if key not in groups:
                groups[key], rows[key] = [], 0
            groups[key].append(position)
            rows[key] += count or 0
        yield from groups.values()

    def _rows(self, inference_request: InferenceRequest) -> int | None:
        counts = {array.shape[0] if array.ndim else None for array in inference_request.feed.values()}
        if self._axis is None or len(counts) != 1:
            return None
        return counts.pop() or None

    def run(self, waiting: Sequence[QueuedRequest], run: Run) -> list[RequestResult]:
        current_time = time.monotonic()
        late = [queued_request.until is not None and queued_request.until <= current_time for queued_request in waiting]
        alive = [queued_request for queued_request, is_late in zip(waiting, late, strict=True) if not is_late]
        try:
            results = iter(self._together(alive, run, current_time) if alive else ())
        except NNAdapterError as error:
            results = iter(self._apart(alive, run, error))
        return [_TOO_LATE if is_late else next(results) for is_late in late]

    def _apart(self, waiting: Sequence[QueuedRequest], run: Run, error: NNAdapterError) -> list[RequestResult]:
        if len(waiting) == 1 or isinstance(error, DeadlineExceededError):
            return [RequestResult({}, error=error)] * len(waiting)
        return [self.run([queued_request], run)[0] for queued_request in waiting]

    def _together(self, waiting: Sequence[QueuedRequest], run: Run, current_time: float) -> list[RequestResult]:
        first = waiting[0].asked
        ends = [queued_request.until for queued_request in waiting]
        seconds = None if None in ends else max(end for end in ends if end is not None) - current_time
        count, axis = self._rows(first), self._axis
        if count is None or axis is None:
            results, devices = run(first.outputs, first.feed, 1, seconds)
            return [RequestResult(dict(zip(first.outputs, results, strict=True)), devices)]
        counts = [len(next(iter(queued_request.asked.feed.values()))) for queued_request in waiting]
        feed = {name: _joined([queued_request.asked.feed[name] for queued_request in waiting]) for name in first.feed}
        device_names: dict[str, None] = {}

        def run_part(part: Feed, rows: int) -> Sequence[Array]:
            results, devices = run(first.outputs, part, rows, seconds)
            device_names[devices] = None
            return results

        joint_results = run_rows(axis, feed, first.outputs, sum(counts), run_part)
        ends_at = np.cumsum(counts)
        return [
            RequestResult(
                {name: joint_results[name][end - rows : end] for name in queued_request.asked.outputs},
                ", ".join(device_names),
            )
            for queued_request, rows, end in zip(waiting, counts, ends_at, strict=True)
        ]


_TOO_LATE = RequestResult(
    {}, error=DeadlineExceededError("the request did not start in time, because others came first")
)


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _key(inference_request: InferenceRequest) -> object:
    shapes = tuple((name, array.dtype.name, array.shape[1:]) for name, array in sorted(inference_request.feed.items()))
    return shapes, inference_request.outputs
