"""A session with a cache: plans that were kept, or the model itself, whose plans are kept for the next one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nnadapter.caching.key import Key
from nnadapter.caching.usual import folder_of
from nnadapter.drivers.registry import require_driver
from nnadapter.drivers.selection import HOSTS, DeviceRequest, Isolate, Selected, named_requests, select_one
from nnadapter.errors import InvalidOptionError, ModelFileError, NNAdapterError, describe
from nnadapter.kept_plans.engine import KeptEngine
from nnadapter.kept_plans.place import Place, facts_of
from nnadapter.kept_plans.settings import key_of
from nnadapter.kept_plans.sources import Source, UnkeyedError, begun_source, source_of
from nnadapter.kernels.registered import registered_kernels
from nnadapter.options import Options

if TYPE_CHECKING:
    from nnadapter.running.planned import PlannedEngine

Requests = DeviceRequest | Sequence[DeviceRequest]


@dataclass(frozen=True, slots=True)
class Keeping:
    """A session whose plans can be kept."""

    source: Source
    devices: tuple[Selected, ...]
    """With all of their options; those of the hosts as they were given."""
    requests: Requests
    """What asks for them, which nobody changes while the session lives."""
    options: Options
    place: Place

    def engine(self) -> tuple[KeptEngine, tuple[str, ...]] | str:
        """What runs the plans that are kept, and the names of the session's devices; or why there is none."""
        opened = self.place.opened()
        if isinstance(opened, str):
            return opened
        try:
            devices, left = facts_of(opened.container)
            return KeptEngine(opened, devices, left, self.options, self._begin), devices
        except NNAdapterError as error:
            return f"one was kept, and cannot be used: {describe(error)}"

    def planned(self, why: str) -> Callable[..., PlannedEngine]:
        """What makes an engine that plans, and keeps its plans; `why` none that was kept is used."""
        from nnadapter.kept_plans.fresh import KeepingEngine

        # Contents in memory are not to be held for it.
        light = replace(self, source=replace(self.source, held=None)) if self._in_memory else self
        return partial(KeepingEngine, place=self.place, is_unchanged=light._is_unchanged, why=why)

    @property
    def _in_memory(self) -> bool:
        return not isinstance(self.source.held, os.PathLike)

    def _begin(self, why: str) -> PlannedEngine:
        """What goes on with the model itself where plans that were kept end."""
        from nnadapter.planning.setting import open_setting
        from nnadapter.running.choosing import make_engine
        from nnadapter.running.planned import PlannedEngine

        make: Callable[..., PlannedEngine] = PlannedEngine if registered_kernels() else self.planned(why)
        if self.options.checks:
            from nnadapter.accuracy.adding import with_checks

            make = with_checks(make, self.options)
        setting = open_setting(self.requests, self.options)
        engine = make_engine(self.source.held, setting, self.options, None, (None, None), {}, make)
        assert isinstance(engine, PlannedEngine), "a device that accelerates comes first, and nothing is traced"
        try:
            self._refuse_mixture()
        except NNAdapterError:
            engine.close()
            raise
        return engine

    def _refuse_mixture(self) -> None:
        """Raise where the model, or what a person demands of it, is not that of the plans that were kept."""
        now, before = self._key_now(), self.place.key
        if now is None or any(now.parts[part] != before.parts[part] for part in ("structure", "constants")):
            raise ModelFileError(
                f"model file {str(self.source.held)!r} has changed since the session was made, and a plan is to be "
                "made of it; make another session"
            )
        if now.parts["options"] != before.parts["options"]:
            raise InvalidOptionError(
                "the file of option 'rules' or 'plan' has changed since the session was made, and a plan is to be made "
                "by it; make another session"
            )

    def _is_unchanged(self) -> bool:
        """Whether all that the key tells of is as it was: what is planned now may be kept under it."""
        return self._key_now() == self.place.key

    def _key_now(self) -> Key | None:
        """The key that a session would have now; None where there is none."""
        try:
            told = self.source if self._in_memory else source_of(self.source.held)
            return key_of(told, self.devices, self.options)
        except (UnkeyedError, OSError):
            return None


def keeping(source: Any, requests: Requests, options: Options) -> Keeping | None:
    """Return what keeps the plans of a session; None where what it is made of cannot be told.

    Args:
        source: what the session is made of.
        requests: its devices, whose plans can be kept (`is_cacheable`).
        options: with a cache.
    """
    try:
        named = deepcopy(named_requests(requests))
        for name in named:
            require_driver(name)  # before much is read in vain
        telling = begun_source(source)  # while devices are opened, and their packages imported
        devices = tuple(_selected(named, options.isolated))
        isolate = {device.name: device.limits for device in devices if device.limits is not None}
        options = replace(options, isolate=isolate or False)
        told = telling()
        place = Place(folder_of(options), key_of(told, devices, options))
        return Keeping(told, devices, tuple(named.items()), options, place)
    except (NNAdapterError, UnkeyedError, OSError):
        return None  # whoever opens devices and the model says what is wrong with them


def _selected(named: Mapping[str, Mapping[str, Any]], isolate: Isolate) -> Iterator[Selected]:
    """The devices that are named, with all of their options; the hosts are not opened for it."""
    for name, options in named.items():
        yield Selected(name, options, named=True) if name in HOSTS else select_one(name, options, isolate)
