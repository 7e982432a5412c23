"""Versions of installed distributions, told by the names of their folders: a start needs no more of most of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

import nnadapter

_FORM, _OLDER = "dist-info", ("egg-info", "egg")


def own_version() -> str:
    """Return the version of nnadapter, installed or not."""
    return nnadapter.__version__


def installed_version(distribution: str) -> str:
    """Return the version of a distribution; empty where it is not installed.

    Source: the specification of PyPA for installed projects, `{name}-{version}.dist-info`.
    """
    target_name = _normalized(distribution)
    for stem, form in _found():
        name, _, version = stem.partition("-")
        if _normalized(name) == target_name:
            if form in _OLDER or not version:
                break
            return version
    from importlib import metadata  # which knows older forms, and takes as long to import as ten of our modules

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def installed_builds(distribution: str) -> str:
    """Return names and versions of a distribution, and of all whose names go on behind its name: its other builds.

    ONNX Runtime's module comes with `onnxruntime`, or with `onnxruntime-gpu` and others in its place.
    """
    target_name, builds = _normalized(distribution), dict[str, str]()
    for stem, form in _found():
        name, _, version = stem.partition("-")
        if _is_build(_normalized(name), target_name):  # the first of a name counts
            builds.setdefault(_normalized(name), "" if form in _OLDER else version)
    return ", ".join(f"{name} {version or installed_version(name)}" for name, version in sorted(builds.items()))


def _is_build(name: str, target_name: str) -> bool:
    return name == target_name or name.startswith(f"{target_name}_")


def _found() -> Iterator[tuple[str, str]]:
    """Names and versions of what Python finds, in its order, and in which form it is there."""
    for folder in (path for path in sys.path if isinstance(path, str)):
        with suppress(OSError, ValueError), os.scandir(folder or ".") as entries:
            for entry in entries:
                stem, _, form = entry.name.rpartition(".")
                if form == _FORM or form in _OLDER:
                    yield stem, form


def _normalized(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")
