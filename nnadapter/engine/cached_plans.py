"""Sessions that start from cached plans, and plan the model for inputs that no cached plan serves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from nnadapter import errors
from nnadapter.drivers import selection
from nnadapter.drivers.kernel import registered_kernels
from nnadapter.drivers.registry import require_driver
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.engine import PlanEngine
from nnadapter.engine.file_loading import Requests
from nnadapter.engine.file_source import FilePlanSource
from nnadapter.engine.plan_entries import LinkedContainer, Place, read_facts
from nnadapter.engine.plan_source import InputShapes, OriginalModelShapes
from nnadapter.errors import CompiledModelError, describe
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.onnx.signature import Shapes
from nnadapter.options import Options
from nnadapter.policies import POLICIES
from nnadapter.records import dataclass, replace
from nnadapter.store.folder import Key, folder_of
from nnadapter.store.keys import Source, UnkeyedError, begun_source, key_of, source_of
from nnadapter.traces.trace import SILENT

if TYPE_CHECKING:
    from nnadapter.engine.model_source import ModelPlanSource
    from nnadapter.engine.observed import KeptReport
    from nnadapter.engine.saving import ReportMaker
    from nnadapter.onnx.preparation.branch_decisions import Truths


def is_cacheable(
    requests: selection.DeviceRequest | Sequence[selection.DeviceRequest], options: Options, session_options: object
) -> bool:
    """Return True if plans can be cached: an accelerator comes first, and the cache key is computable.

    ONNX Runtime's session options prevent caching, since they cannot be read back.
    """
    is_told = session_options is None and options.trace is None and not POLICIES[options.policy].times
    if options.shadow is not None:
        return False
    return is_told and not registered_kernels() and selection.accelerates_first(requests)


class _NotCachedError(errors.InvalidInputError):
    pass


class _PlanFailedError(errors.NNAdapterError):
    pass


_RECOVERABLE = (
    _NotCachedError,
    _PlanFailedError,
    errors.CompiledModelError,
    errors.CompilationError,
    errors.ExecutionError,
    errors.OutOfMemoryError,
)


class CachedPlanSource(FilePlanSource):
    """Plan source of a cache entry. Another source plans the model for inputs without a cached plan. Thread-safe.

    Args:
        original_model_shapes: shapes that the original model serves, by selection of branches.
        plan_model: returns a source that plans the model, for the given reason.
    """

    recoverable = _RECOVERABLE

    def __init__(
        self,
        file: CompiledFile,
        devices: Sequence[str],
        original_model_shapes: OriginalModelShapes,
        options: Options,
        plan_model: Callable[[str], ModelPlanSource],
    ) -> None:
        self._original_model_shapes, self._plan_model = original_model_shapes, plan_model
        # planning the model replaces fallback
        plain = replace(
            options, policy="priority", precision=None, rules=None, plan=None, fallback="forbid", verify=None,
            background=False,
        )  # fmt: skip
        super().__init__(file, None, plain, SILENT, fall_back=_plan_again)
        self.devices = tuple(devices)

    def observed(self, last_shapes: InputShapes | None) -> KeptReport:
        newest = self.plans.newest
        record = self._file.message.plans[0] if newest is None else newest.record
        cached = {number: step.HasField("program") for number, step in enumerate(record.steps)}
        return replace(super().observed(last_shapes), cached=cached)

    def close(self) -> None:
        with suppress(errors.ClosedError):
            super().close()

    def successor(self, error: Exception) -> ModelPlanSource:
        """Return a source that plans the model after a cached plan failed.

        If the CPU failed, raise `error`, since a new plan would fail too.
        """
        if isinstance(error, errors.ExecutionError) and error.device in selection.HOSTS:
            raise error
        return self._plan_model(f"cached plans are no longer used: {error}")

    def _may_be_any(self, truths: Truths, shapes: InputShapes) -> bool:
        original_shapes = self._original_model_shapes.get(truths, frozenset())
        return original_shapes is None or shapes in original_shapes

    def _unknown(self, shapes: Sequence[tuple[int, ...] | None]) -> errors.InvalidInputError:
        return _NotCachedError("no cached plan serves these shapes")


def _plan_again(error: errors.NNAdapterError) -> NoReturn:
    """Raise an error in place of the CPU fallback, so that `successor` plans the model."""
    raise _PlanFailedError(str(error)) from error


class UpperLayers(NamedTuple):
    """Functions of packages above `engine`, which may not be imported here."""

    make_report: ReportMaker
    with_checks: Callable[[Callable[..., ModelPlanSource], Options], Callable[..., ModelPlanSource]]


@dataclass(frozen=True, slots=True)
class CachedSession:
    """Model, devices, options and cached plans of a session."""

    source: Source
    devices: tuple[selection.Selected, ...]
    requests: Requests
    options: Options
    place: Place

    def engine(self, upper: UpperLayers) -> tuple[PlanEngine, tuple[str, ...]] | str:
        """Return an engine for the cached plans and its device names, or the reason why there is none."""
        open_file = self.place.open_file()
        if isinstance(open_file, str):
            return open_file
        try:
            devices, shapes = read_facts(open_file.container)
            source = CachedPlanSource(open_file, devices, shapes, self.options, partial(self._plan_model, upper))
            return PlanEngine(source, self.options.deadline_s), devices
        except errors.NNAdapterError as error:
            return f"the cached plan cannot be used: {errors.describe(error)}"

    def source_maker(self, reason: str, make_report: ReportMaker) -> Callable[..., ModelPlanSource]:
        """Return a constructor of plan sources that write to the cache; `reason` is why no cached plan is used."""
        from nnadapter.engine.model_source import ModelPlanSource
        from nnadapter.engine.plan_cache_writer import PlanCacheWriter

        light = replace(self, source=replace(self.source, origin=None)) if self._in_memory else self
        verifies = self.options.verify is not None
        writer = PlanCacheWriter(self.place, light._is_unchanged, reason, make_report, verifies=verifies)
        return partial(ModelPlanSource, cache_writer=writer)

    @property
    def _in_memory(self) -> bool:
        return not isinstance(self.source.origin, os.PathLike)

    def _plan_model(self, upper: UpperLayers, reason: str) -> ModelPlanSource:
        from nnadapter.engine.model_source import ModelPlanSource, open_source
        from nnadapter.planning.setting import open_setting

        make: Callable[..., ModelPlanSource] = (
            ModelPlanSource if registered_kernels() else self.source_maker(reason, upper.make_report)
        )
        if self.options.checks:
            make = upper.with_checks(make, self.options)
        setting = open_setting(self.requests, self.options)
        try:
            source = open_source(self.source.origin, setting, self.options, None, make)
        except BaseException:
            setting.close()
            raise
        try:
            self._refuse_mixture()
        except errors.NNAdapterError:
            source.close()
            raise
        return source

    def _refuse_mixture(self) -> None:
        """Raise an error if the model, or a file named in options, has changed since plans were cached."""
        current, cached = self._key_now(), self.place.key
        if current is None or any(current.parts[part] != cached.parts[part] for part in ("structure", "constants")):
            raise errors.ModelFileError(
                f"model file {str(self.source.origin)!r} has changed since the session was created, and no cached plan "
                "serves these shapes; create a new session"
            )
        if current.parts["options"] != cached.parts["options"]:
            raise errors.InvalidOptionError(
                "the file of option 'rules' or 'plan' has changed since the session was created, and another plan is "
                "needed; create a new session"
            )

    def _is_unchanged(self) -> bool:
        return self._key_now() == self.place.key

    def _key_now(self) -> Key | None:
        try:
            source = self.source if self._in_memory else source_of(self.source.origin)
            return key_of(source, self.devices, self.options)
        except (UnkeyedError, OSError):
            return None


def cached_session(source: Any, requests: Requests, options: Options) -> CachedSession | None:
    """Return the session with its place in the cache; None if a device is unusable or the model has no digest."""
    try:
        named = deepcopy(selection.named_requests(requests))
        for name in named:
            require_driver(name)
        read_source = begun_source(source)
        devices = tuple(_selected(named, options))
        isolate = {device.name: device.limits for device in devices if device.limits is not None}
        options = replace(options, isolate=isolate or False)
        model_digest = read_source()
        place = Place(folder_of(options), key_of(model_digest, devices, options))
        return CachedSession(model_digest, devices, tuple(named.items()), options, place)
    except (errors.NNAdapterError, UnkeyedError, OSError):
        return None


def _selected(named: Mapping[str, Mapping[str, Any]], settings: Options) -> Iterator[selection.Selected]:
    for name, options in named.items():
        yield (
            selection.Selected(name, options, named=True)
            if name in selection.HOSTS
            else selection.select_one(name, options, settings.isolated, settings.precision)
        )


@dataclass(frozen=True, slots=True)
class Lookup:
    """Result of a search for cached plans."""

    hit: bool
    miss_reason: str = ""
    """Reason for a miss, with differences from the nearest entry's key."""
    shapes: str = ""


def look_up_plans(
    source: str | os.PathLike[str] | bytes,
    requests: Sequence[selection.DeviceRequest],
    options: Options,
    shapes: Shapes | None = None,
) -> Lookup:
    """Search for cached plans that serve these shapes of all inputs (None for any)."""
    if kind_of(source) is SourceKind.COMPILED:
        return Lookup(False, "a compiled model contains its plans")
    if not is_cacheable(requests, options, None):
        return Lookup(False, "plans are not cached if the CPU comes first, or with registered custom kernels")
    session = cached_session(source, requests, options)
    if session is None:
        return Lookup(False, "plans are not cached for a model that cannot be read, or identified by its bytes")
    open_file = session.place.open_file()
    if isinstance(open_file, str):
        return Lookup(False, open_file)
    try:
        return _lookup_in(open_file, shapes)
    except CompiledModelError as error:
        return Lookup(False, f"the cached plan cannot be used: {describe(error)}")


def _lookup_in(file: CompiledFile, shapes: Shapes | None) -> Lookup:
    from nnadapter.engine.file_texts import dynamic_shape_sets, served_shapes_text

    assert isinstance(file.container, LinkedContainer), "of a place"
    file.container.check_links()
    dynamic = dynamic_shape_sets(file)
    served_text = served_shapes_text(file, dynamic)
    static = (file.shapes(plan) for plan in file.message.plans if not plan.HasField("open"))
    if shapes is None or dict(shapes) in static or any(dynamic_plan.match(shapes)[0] for dynamic_plan in dynamic):
        return Lookup(True, shapes=served_text)
    return Lookup(False, f"the cached plan is for input shapes {served_text}")
