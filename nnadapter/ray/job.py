"""The one actor of a job: has the model compiled once for each kind of machine, and adds up what batches did."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from nnadapter.errors import NNAdapterError
from nnadapter.ray.compiled import Made, compile_locally
from nnadapter.ray.kinds import Kind
from nnadapter.ray.request import Request
from nnadapter.ray.totals import BatchRecord, Totals

_MOST_TRIES = 3
"""Of machines that die while they compile."""
_MOST_EXECUTIONS = 16
"""That are remembered; a dataset that is consumed again is executed again."""


class SessionRecord(NamedTuple):
    """A session that an actor made."""

    actor: str
    machine: str
    address: str
    kind: str
    devices: tuple[str, ...]
    seconds: float
    """From the file to a session that can run."""


class JobSnapshot(NamedTuple):
    """What the job knows, as it travels to who asks."""

    totals: Totals | None
    """Of the newest execution; None before any batch."""
    executions: int
    kinds: Mapping[str, Kind]
    made: Mapping[str, Made]
    compiles: Mapping[str, int]
    """Per kind, how often it was compiled."""
    sessions: Sequence[SessionRecord]


class Job:
    """See the module. Its methods run in one event loop, so none of them needs a lock."""

    def __init__(self, contents: Any, request: Request) -> None:
        self._contents, self._request = contents[0], request
        self._tasks: dict[str, asyncio.Task[tuple[Any, Made]]] = {}
        self._made: dict[str, Made] = {}
        self._kinds: dict[str, Kind] = {}
        self._compiles: dict[str, int] = {}
        self._sessions: dict[str, SessionRecord] = {}
        self._executions: dict[str, Totals] = {}
        self._ended = 0

    async def compiled(self, kind: Kind, node: str, shapes: Any = None) -> tuple[Any, str]:
        """Return what is compiled for a kind, as a reference to its bytes or a path; the first who asks has it made.

        Args:
            kind: of the machine of the caller.
            node: of the caller, where it is compiled.
            shapes: of the rows that the caller has, for a request that says none.
        """
        self._kinds.setdefault(kind.name, kind)
        if self._request.is_compiled:
            return self._contents, ""
        for remaining_tries in reversed(range(_MOST_TRIES)):
            task = self._tasks.get(kind.name)
            if task is None:
                task = self._tasks[kind.name] = asyncio.ensure_future(self._compile(kind, node, shapes))
            try:
                reference, compile_result = await asyncio.shield(task)
            except NNAdapterError:
                raise
            except Exception:
                if self._tasks.get(kind.name) is task:  # the machine died; somebody else's is asked
                    del self._tasks[kind.name]
                if not remaining_tries:
                    raise
            else:
                return reference, compile_result.path
        raise AssertionError("the last try returns or raises")

    async def _compile(self, kind: Kind, node: str, shapes: Any) -> tuple[Any, Made]:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node_affinity = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        run = ray.remote(compile_locally).options(num_cpus=0, max_retries=0, scheduling_strategy=node_affinity)
        request = self._request if shapes is None else replace(self._request, shapes=_each_once(shapes))
        compile_result: Made = await run.remote(self._contents, kind, request)
        # The bytes belong to this actor from here on, so that they stay when the machine goes that compiled.
        reference = None if compile_result.contents is None else ray.put(compile_result.contents)
        self._compiles[kind.name] = self._compiles.get(kind.name, 0) + (not compile_result.was_there)
        self._made[kind.name] = replace(compile_result, contents=None)
        return reference, compile_result

    async def began(self, record: SessionRecord) -> None:
        """Remember a session."""
        self._sessions[record.actor] = record

    async def add(self, record: BatchRecord) -> None:
        """Count a batch, once."""
        totals = self._executions.get(record.key.execution)
        if totals is None:
            totals = self._executions[record.key.execution] = Totals()
            if len(self._executions) > _MOST_EXECUTIONS:
                del self._executions[next(iter(self._executions))]
                self._ended += 1
        totals.add(record)

    async def tell(self) -> JobSnapshot:
        """What is known by now; not which tasks were counted, of which there may be millions."""
        newest = next(reversed(self._executions.values()), None)
        execution = newest and replace(newest, seen={})
        return JobSnapshot(
            execution, len(self._executions) + self._ended, self._kinds, self._made, self._compiles,
            tuple(self._sessions.values()),
        )  # fmt: skip


def _each_once(shapes: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Sets of shapes, without repetitions."""
    return tuple(shape_set for place, shape_set in enumerate(shapes) if shape_set not in shapes[:place])
