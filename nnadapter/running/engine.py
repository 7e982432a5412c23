"""What runs the model of a session: the seam between a session and the ways to run a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from nnadapter.onnx.signature import ModelMetadata, NodeArg, Shapes
from nnadapter.running.bindings import Binding
from nnadapter.running.control import RunControl
from nnadapter.running.observed import KeptReport, Observed
from nnadapter.running.provenance import Provenance

if TYPE_CHECKING:
    import onnxruntime


class Engine(Protocol):
    """One model, ready to run. Usable from many threads at once.

    ONNX Runtime alone is one (`host`), plans over several devices another (`planned`).
    """

    def run(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any = None,
        control: RunControl | None = None,
    ) -> tuple[list[Any], Provenance]:
        """Run the model. See `InferenceSession.run`; `control` is the run's where somebody has a hand on it."""

    def binding(self) -> Binding:
        """Return a new binding of inputs and outputs; its runs are runs of the engine."""

    def prepare(self, shapes: Shapes) -> None:
        """Do now what a first run of these input shapes would have to do."""

    def observed(self) -> Observed | KeptReport:
        """What runs where, and what was seen of it: for the shapes of the last run, or usual ones."""

    def inputs(self) -> list[NodeArg]:
        """The inputs that must be fed."""

    def outputs(self) -> list[NodeArg]:
        """The outputs."""

    def overridable(self) -> list[NodeArg]:
        """The inputs that may be fed and have contents of their own."""

    def metadata(self) -> ModelMetadata:
        """What the model says of itself."""

    def session_options(self) -> onnxruntime.SessionOptions:
        """ONNX Runtime's own options."""

    def end_profiling(self) -> str:
        """Stop profiling; the file's name, or an empty string where nothing was profiled."""

    def profiling_started(self) -> int:
        """When profiling began, in nanoseconds; 0 where nothing is profiled."""

    def close(self) -> None:
        """Free everything; what is in use is freed when it is not any more. May be called again."""
