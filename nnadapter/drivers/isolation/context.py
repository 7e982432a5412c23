"""A context of a device in another process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pickle import PickleBuffer
from typing import Any, Protocol

from nnadapter.drivers.interface import Admission, Compatibility, Context, Program, SegmentModel
from nnadapter.drivers.isolation.child import Child
from nnadapter.drivers.isolation.limits import PHASE_OF
from nnadapter.drivers.isolation.made import Made, RemoteLocation
from nnadapter.drivers.isolation.program import IsolatedProgram, Recipe
from nnadapter.drivers.profile import Profile
from nnadapter.ir.operand import Array
from partition.verdict import Verdict


class Home(Protocol):
    """The device."""

    name: str

    def child_for(self, context: Made, limit_s: float) -> Child:
        """The process, which stays as long as the context is open there; started anew it has so long to open."""


class IsolatedContext(Context):
    """See `nnadapter.drivers.isolated`; `close` frees it there.

    Args:
        device: the device.
        options: of the context.
        limits: seconds that questions may take, by phase.
    """

    def __init__(self, device: Home, options: Mapping[str, Any], limits: Mapping[str, float]) -> None:
        self.device, self.limits = device, limits
        self._options = options
        self.made = Made(self._create)
        """Where it is."""
        self.made.there()

    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        """See `Context.supported`."""
        verdicts: list[Verdict] = self._ask("supported", model)[1]
        return verdicts

    def admit(self, model: SegmentModel) -> Admission:
        """See `Context.admit`."""
        admission: Admission = self._ask("admit", model)[1]
        return admission

    def profile(self) -> Profile | None:
        """See `Context.profile`."""
        location = self.made.there()
        profile: Profile | None = location.child.ask("profile", self.limit("profile"), context=location.number)
        return profile

    def compile(self, model: SegmentModel) -> Program:
        """See `Context.compile`."""
        return self._compiled("compile", model)

    def compile_whole(self, model: SegmentModel) -> Program:
        """See `Context.compile_whole`."""
        return self._compiled("compile_whole", model)

    def bind(self, program: Program, model: SegmentModel) -> Program | None:
        """See `Context.bind`; None where the process of the program is lost: its model is compiled again anyway."""
        assert isinstance(program, IsolatedProgram), "programs of a context are its own"
        program_location, location = program.made.there(), self.made.there()
        if program_location.child is not location.child:
            return None
        location, number = self._ask("bind", model, program=program_location.number)
        if number is None:
            return None
        return IsolatedProgram(self, Recipe("compile", model), RemoteLocation(location.child, number))

    def deserialize(self, blob: bytes) -> Program:
        """See `Context.deserialize`."""
        return self._deserialized("deserialize", blob)

    def deserialize_view(self, blob: memoryview) -> Program:
        """See `Context.deserialize_view`: the process gets the bytes in memory that is shared."""
        return self._deserialized("deserialize_view", blob)

    def _deserialized(self, command: str, blob: bytes | memoryview) -> Program:
        program = IsolatedProgram(self, Recipe(command, blob=blob))
        program.made.there()
        return program

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        """See `Context.check_blob`.

        Raises:
            DriverError: the driver raised, or gave something else.
        """
        location, limit = self.made.there(), self.limit("check_blob")
        compatibility: Compatibility | None = location.child.ask(
            "check_blob", limit, context=location.number, blob=PickleBuffer(blob)
        )
        return compatibility

    def compute_at(self, model: SegmentModel, jobs: Sequence[tuple[int, Sequence[int], Sequence[Array]]]) -> Any:
        """Compute with executions of a program of the model that was asked about last, whose sizes are left open.

        Args:
            model: it.
            jobs: numbers of executions, sizes, and inputs; see `isolation.at_sizes`.

        Returns:
            Results of the jobs at whose sizes the program holds, which inputs each has written to, and the positions
            of those jobs.
        """
        (results, changed), positions = self._ask("compute_at", model, jobs=jobs)[1]
        return results, changed, positions

    def close(self) -> None:
        """See `Context.close`."""
        location = self.made.known
        if location is not None:
            location.child.users.discard(self.made)
        self.made.close(self.limit("close"))

    def limit(self, command: str) -> float:
        """Seconds that something may take."""
        return self.limits[PHASE_OF[command]]

    def compiled(self, command: str, model: SegmentModel) -> RemoteLocation:
        """Where a program of a model is, compiled anew."""
        location, number = self._ask(command, model)
        return RemoteLocation(location.child, number)

    def _compiled(self, command: str, model: SegmentModel) -> Program:
        started = time.perf_counter()
        location = self.compiled(command, model)
        return IsolatedProgram(self, Recipe(command, model), location, time.perf_counter() - started)

    def _create(self) -> RemoteLocation:
        child = self.device.child_for(self.made, self.limits["open"])
        return RemoteLocation(child, child.ask("create_context", self.limit("create_context"), options=self._options))

    def _ask(self, command: str, model: SegmentModel, **arguments: Any) -> tuple[RemoteLocation, Any]:
        """Ask about a model, which is sent unless it was the last one."""
        location = self.made.there()
        child = location.child
        with child.model_lock:
            number, last = child.model
            if last is not model:
                number += 1
                child.ask("take_model", self.limit("take_model"), number=number, model=model)
                child.model = number, model
            return location, child.ask(command, self.limit(command), context=location.number, model=number, **arguments)
