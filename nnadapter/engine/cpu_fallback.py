"""CPU fallback for the entire model, used if a plan cannot continue or is not compiled yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nnadapter.drivers.tensor_copies import Transfer, on_host
from nnadapter.engine.bound_steps import OutDevices, output_of
from nnadapter.engine.control import RunControl
from nnadapter.engine.execution_pool import ExecutionPool
from nnadapter.engine.fallback import Incident
from nnadapter.engine.plan_store import Holding
from nnadapter.engine.provenance import Provenance, StepRun
from nnadapter.errors import FAILURES, NNAdapterError
from nnadapter.records import dataclass


@dataclass(frozen=True, slots=True)
class CpuFallback:
    """Original model before planning, on the host."""

    device: str
    pool: ExecutionPool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    say: Callable[[NNAdapterError], Incident] | None = None

    def run(
        self,
        feeds: Mapping[str, Any],
        names: Sequence[str],
        failure: str,
        out_devices: OutDevices | None,
        control: RunControl | None,
    ) -> tuple[list[Any], Provenance]:
        started, transfers = time.perf_counter(), list[Transfer]()
        arrays = [on_host(feeds[name], name, transfers) for name in self.inputs]
        try:
            computed = self.pool.compute(arrays, control)
        except FAILURES as error:
            if control is None or not control.is_over:
                raise
            raise control.error(f"while the original model ran on {self.device!r}", device=self.device) from error
        results = dict(zip(self.outputs, computed, strict=True))
        run = StepRun(0, self.device, time.perf_counter() - started, failure)
        outputs = [output_of(results[name], name, feeds, out_devices, transfers) for name in names]
        return outputs, Provenance((run,), tuple(transfers))

    @property
    def holding(self) -> Holding:
        return self.pool.holding

    def close(self) -> None:
        self.pool.close()
