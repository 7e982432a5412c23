"""Which batch a worker is at, by numbers that are the same when Ray repeats it."""

from __future__ import annotations

from typing import Any, NamedTuple

_ORDINAL = "nnadapter_batch"


class BatchKey(NamedTuple):
    """What tells a batch from all others of a job; a batch that is repeated has the key of before."""

    execution: str
    """A dataset that is consumed twice is executed twice."""
    task: str
    """Ray's: it hands a worker some blocks."""
    ordinal: int
    """Of the batch in that task: tasks are repeated from their beginning."""


class Attempts:
    """Gives the batches of one worker their keys; called by the thread that has the batch."""

    def __init__(self) -> None:
        self._last = ("", -1)

    def next(self) -> BatchKey:
        """The key of the batch that comes now."""
        import ray
        from ray.data import DataContext

        execution = str(getattr(DataContext.get_current(), "dataset_logger_id", None) or "")
        task = _task_context()
        if task is not None:  # a new one for each attempt, so that what is noted in it ends with that
            task.kwargs[_ORDINAL] = ordinal = task.kwargs.get(_ORDINAL, -1) + 1
            return BatchKey(execution, str(task.task_idx), ordinal)
        name = str(ray.get_runtime_context().get_task_id())
        self._last = (name, self._last[1] + 1 if name == self._last[0] else 0)
        return BatchKey(execution, *self._last)


def _task_context() -> Any:
    """What Ray Data says of the attempt; None where this Ray has it elsewhere."""
    try:
        from ray.data._internal.execution.interfaces import TaskContext
    except ImportError:
        return None
    return TaskContext.get_current()
