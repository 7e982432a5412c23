"""An import finder that hides installed nnadapter extensions from the suite."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path


class WithoutExtensions:
    """Finder that skips distributions in the folders `before` that extend nnadapter."""

    def __init__(self, before):
        self.before = frozenset(before)
        self.find_spec, self.invalidate_caches = PathFinder.find_spec, PathFinder.invalidate_caches

    def find_distributions(self, *arguments):
        for distribution in PathFinder.find_distributions(*arguments):
            extends = any(point.group.startswith("nnadapter.") for point in distribution.entry_points)
            if not extends or str(Path(distribution.locate_file("")).resolve()) not in self.before:
                yield distribution


def hide(before):
    """Hide extensions in these folders; return the previous finders."""
    finders, finder = list(sys.meta_path), WithoutExtensions(before)
    sys.meta_path[:] = [finder if each is PathFinder else each for each in finders]
    return finders


def hide_from_children(folder, before):
    """Write a startup file that hides extensions in every process with `folder` on its path.

    The file also lets these processes read onnx's operator tests from another process.
    """
    from tests import made_once  # not importable in child processes

    calls = [(__file__, f"['hide']({before!r})"), (made_once.__file__, "['make_once']()")]
    lines = (f"runpy.run_path({file!r}){call}" for file, call in calls)
    (folder / "sitecustomize.py").write_text("\n".join(["import runpy", *lines, ""]))
