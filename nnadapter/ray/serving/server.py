"""Replica of a served model: receives, joins, runs and answers requests."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from nnadapter.errors import DeadlineExceededError, DriverError, InvalidInputError, NNAdapterError
from nnadapter.process.packages import own_version
from nnadapter.process.resources import new_lock
from nnadapter.ray.actors import Sums, kind_of, local_file, open_file, run_options
from nnadapter.ray.cluster import Request as Wanted
from nnadapter.ray.serving import protocol
from nnadapter.ray.serving.batching import Batcher, QueuedRequest, RequestResult
from nnadapter.ray.serving.request_body import body_of, length_of
from nnadapter.records import dataclass

_REMEMBERED = 20
_FAILURES_IN_A_ROW = 3


class Health:
    """Counts of runs and requests. Thread-safe."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._last: deque[str] = deque(maxlen=_REMEMBERED)
        self._statuses: Counter[int] = Counter()
        self.sums = Sums()
        self.joined = 0

    def ran(self, provenance: Any, feed: Mapping[str, Any], rows: int, seconds: float) -> str:
        with self._lock:
            self.sums.add(provenance, feed, rows, seconds)
            self._last.append("fell back" if provenance.fell_back else "well")
        return "+".join(dict.fromkeys(step.device for step in provenance.steps))

    def failed(self) -> None:
        with self._lock:
            self._last.append("failed")

    def answered(self, status: int) -> None:
        with self._lock:
            self._statuses[status] += 1

    @property
    def state(self) -> str:
        """`fails` if the last runs all failed, `falls back` if the last one fell back, otherwise `works`."""
        with self._lock:
            newest = list(self._last)[-_FAILURES_IN_A_ROW:]
        if len(newest) == _FAILURES_IN_A_ROW and set(newest) == {"failed"}:
            return "fails"
        return "falls back" if newest and newest[-1] == "fell back" else "works"

    def to_dict(self) -> dict[str, Any]:
        with self._lock:
            sums = self.sums
            counts = {
                "requests": sum(self._statuses.values()),
                "statuses": {str(status): number for status, number in sorted(self._statuses.items())},
                "runs": sums.runs,
                "rows": sum(sums.where.values()),
                "batched_requests": self.joined,
                "seconds": sums.seconds,
                "rows_by_device": dict(sums.where),
                "fallback_rows": sums.fallen,
                "incidents": dict(sums.incidents),
            }
        return {"health": self.state, **counts}


_EXTENSIONS = ("binary_tensor_data", "report")
_log = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a replica."""

    name: str
    max_batch_size: int
    batch_wait_s: float
    deadline_s: float | None
    max_queued_requests: int
    max_request_bytes: int


class Server:
    """Replica of a served model."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, compiler: Any, request: Wanted, settings: Settings
    ) -> None:
        import ray

        self._settings, self._signature = settings, request.signature
        self._health, self._waiting, self._bytes = Health(), 0, 0
        kind, node = await asyncio.to_thread(kind_of, request)
        reference, path = await compiler.compiled.remote(kind, node)
        if not path:
            path = await asyncio.to_thread(lambda: local_file(ray.get(reference), kind, request))
        opened = await asyncio.to_thread(open_file, path, kind, request)
        self._session = opened.session
        self._batcher = Batcher(self._signature, settings.max_batch_size, opened.static_rows)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nnadapter")
        self._infer.set_max_batch_size(settings.max_batch_size)
        self._infer.set_batch_wait_timeout_s(settings.batch_wait_s)

    async def __call__(self, request: Request) -> Response:
        try:
            route = protocol.route_of(request.method, request.url.path, self._settings.name)
            response = await self._answer(route, request)
        except Exception as failure:  # noqa: BLE001  every request gets a response
            error = protocol.http_error(failure)
            response = _json_response({"error": error.message}, error.status)
            if error.retry_after:
                response.headers["Retry-After"] = str(error.retry_after)
            if error.status == 500:
                _log.error("a request failed", exc_info=failure)
        self._health.answered(response.status_code)
        return response

    def check_health(self) -> None:
        """Raise DriverError if the device fails without a fallback, so Ray Serve replaces the replica."""
        if self._health.state == "fails":
            raise DriverError(f"the last runs of model {self._settings.name!r} failed; see the incidents in its report")

    async def _answer(self, route: protocol.Route, request: Request) -> Response:
        name, signature = self._settings.name, self._signature
        if route is protocol.Route.INFER:
            return await self._inferred(request)
        if route is protocol.Route.READY and self._health.state == "fails":
            return _json_response({"name": name, "ready": False, **self._health.to_dict()}, 503)
        if route is protocol.Route.REPORT_PAGE:
            page = await asyncio.to_thread(lambda: self._session.report().to_html(name))
            return Response(page, media_type="text/html")
        answers: Mapping[protocol.Route, Any] = {
            protocol.Route.SERVER: {
                "name": "nnadapter",
                "version": own_version(),
                "extensions": list(_EXTENSIONS),
            },
            protocol.Route.LIVE: {"live": True},
            protocol.Route.READY: {"name": name, "ready": True, "health": self._health.state},
            protocol.Route.MODEL: protocol.model_metadata(name, signature),
        }
        if route is protocol.Route.REPORT:
            report = await asyncio.to_thread(lambda: self._session.report().to_json())
            return _json_response({"server": self._health.to_dict(), "session": json.loads(report)})
        return _json_response(answers[route])

    async def _inferred(self, request: Request) -> Response:
        settings, length = self._settings, length_of(request, self._settings.max_request_bytes)
        if self._waiting >= settings.max_queued_requests or (
            self._waiting and self._bytes + length > protocol.WAITING_BYTES
        ):
            raise protocol.HttpError(503, f"{self._waiting} requests are queued already; try again", retry_after=1)
        self._waiting, self._bytes = self._waiting + 1, self._bytes + length
        try:
            body = await body_of(request, length, settings.deadline_s)
            inference_request = await asyncio.to_thread(
                protocol.read_request, body, request.headers.get(protocol.HEADER_LENGTH), self._signature
            )
            self._signature.check_feed(inference_request.feed)
            result = await self._await_results(inference_request)
        finally:
            self._waiting, self._bytes = self._waiting - 1, self._bytes - length
        if result.error is not None:
            raise result.error
        text, headers = protocol.written(
            settings.name, inference_request.id, result.results, inference_request.binary, result.devices
        )
        return Response(text, headers=dict(headers))

    async def _await_results(self, inference_request: protocol.InferenceRequest) -> RequestResult:
        seconds = inference_request.timeout if inference_request.timeout is not None else self._settings.deadline_s
        until = None if seconds is None else time.monotonic() + seconds
        try:
            result: RequestResult = await asyncio.wait_for(
                self._infer(QueuedRequest(inference_request, until)), seconds
            )
        except TimeoutError as error:
            raise DeadlineExceededError(f"the request did not finish within {seconds:g} s") from error
        return result

    @serve.batch(max_batch_size=1, batch_wait_timeout_s=0.0)  # type: ignore[untyped-decorator]
    async def _infer(self, waiting: list[QueuedRequest]) -> list[RequestResult]:
        results: list[RequestResult] = [RequestResult({})] * len(waiting)
        loop = asyncio.get_running_loop()
        for group in self._batcher.groups(waiting):
            group_results = await loop.run_in_executor(
                self._worker, partial(self._batcher.run, [waiting[position] for position in group], self._run)
            )
            for position, result in zip(group, group_results, strict=True):
                results[position] = result
            self._health.joined += len(group) if len(group) > 1 else 0
        return results

    def _run(
        self, outputs: Sequence[str], feed: Mapping[str, Any], rows: int, seconds: float | None
    ) -> tuple[Any, str]:
        started = time.perf_counter()
        try:
            results = self._session.run(outputs, feed, run_options(seconds))
        except (InvalidInputError, DeadlineExceededError):
            raise
        except NNAdapterError:
            self._health.failed()
            raise
        return results, self._health.ran(self._session.provenance, feed, rows, time.perf_counter() - started)


def _json_response(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")
