"""A program of a device in another process, and how it is made again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any, Protocol

from nnadapter.drivers.interface import Execution, Program, SegmentModel
from nnadapter.drivers.isolation.execution import IsolatedExecution
from nnadapter.drivers.isolation.forms import forms_of
from nnadapter.drivers.isolation.made import Made, RemoteLocation
from nnadapter.errors import DeviceLostError, DriverError, IncompatibleProgramError, NNAdapterError

_SLOW_S = 0.5
"""What took as long to compile is kept as bytes, where its driver gives them: it comes back sooner."""


class Compiling(Protocol):
    """The context."""

    made: Made

    def limit(self, command: str) -> float:
        """Seconds that something may take."""

    def compiled(self, command: str, model: SegmentModel) -> RemoteLocation:
        """Where a program of a model is, compiled anew."""


@dataclass(slots=True)
class Recipe:
    """How a program is made."""

    what: str
    """`compile`, `compile_whole`, `deserialize`, or `deserialize_view`: its bytes were held against a checksum."""
    model: SegmentModel | None = None
    blob: Any = None
    """Bytes that its driver gave, if there are any."""


class IsolatedProgram(Program):
    """See `nnadapter.drivers.isolated`.

    Args:
        context: of the program.
        recipe: how it is made.
        there: where it was made already.
        seconds: that making it took.
    """

    def __init__(
        self, context: Compiling, recipe: Recipe, location: RemoteLocation | None = None, seconds: float = 0.0
    ) -> None:
        self.context = context
        self.forms = None if recipe.model is None else forms_of(recipe.model)
        """Of what it makes, where that is known."""
        self._recipe = recipe
        self._memory: tuple[int, int, Mapping[Hashable, int]] | None = None
        self.made = Made(self._again, location)
        """Where it is."""
        if seconds >= _SLOW_S:
            self.serialize()

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        return IsolatedExecution(self.made, self.forms, self.context.limit)

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`."""
        return self._held[0]

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`."""
        return self._held[1]

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        """See `Program.shared_bytes`."""
        return {(id(self.context), key): nbytes for key, nbytes in self._held[2].items()}

    @property
    def _held(self) -> tuple[int, int, Mapping[Hashable, int]]:
        """What the program said first: a device that computes is not asked again."""
        if self._memory is None:
            location = self.made.there()
            answer = location.child.ask("memory", self.context.limit("memory"), program=location.number)
            if not (isinstance(answer, tuple) and len(answer) == 3 and isinstance(answer[2], dict)):
                raise DriverError(f"device {location.child.device!r} did not tell what a program holds")
            self._memory = answer
        return self._memory

    def serialize(self) -> bytes | None:
        """See `Program.serialize`."""
        recipe = self._recipe
        if recipe.blob is not None:
            return bytes(recipe.blob)
        location = self.made.there()
        blob: bytes | None = location.child.ask("serialize", self.context.limit("serialize"), program=location.number)
        recipe.blob = blob
        return blob

    def close(self) -> None:
        """See `Program.close`."""
        self.made.close(self.context.limit("close"))

    def _again(self) -> RemoteLocation:
        recipe, context = self._recipe, self.context
        if recipe.blob is not None:
            location = context.made.there()
            try:
                limit, blob = context.limit("deserialize"), PickleBuffer(recipe.blob)
                how = recipe.what if recipe.model is None else "deserialize"
                number = location.child.ask(how, limit, context=location.number, blob=blob)
                return RemoteLocation(location.child, number)
            except DeviceLostError:
                raise
            except NNAdapterError:
                if recipe.model is None:
                    raise
                recipe.blob = None
        if recipe.model is None:
            raise IncompatibleProgramError("there is neither a model nor bytes of the program")
        return context.compiled(recipe.what, recipe.model)
