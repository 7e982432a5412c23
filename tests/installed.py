"""What a person installed beside the suite stays out of it, by a finder in the place of Python's own."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path


class WithoutExtensions:
    """Finds what lies on `sys.path` as Python does, but no distribution in `before` that extends nnadapter."""

    def __init__(self, before):
        self.before = frozenset(before)
        self.find_spec, self.invalidate_caches = PathFinder.find_spec, PathFinder.invalidate_caches

    def find_distributions(self, *arguments):
        """See `importlib.metadata.DistributionFinder`."""
        for distribution in PathFinder.find_distributions(*arguments):
            extends = any(point.group.startswith("nnadapter.") for point in distribution.entry_points)
            if not extends or str(Path(distribution.locate_file("")).resolve()) not in self.before:
                yield distribution


def hide(before):
    """Hide extensions in these folders; return the finders that were there."""
    finders, finder = list(sys.meta_path), WithoutExtensions(before)
    sys.meta_path[:] = [finder if each is PathFinder else each for each in finders]
    return finders


def hide_from_children(folder, before):
    """Write what makes Python hide them in every process that finds `folder` on its path.

    There, too, operator tests of onnx are read where another process made them.
    """
    from tests import made_once  # not where children run this file

    calls = [(__file__, f"['hide']({before!r})"), (made_once.__file__, "['make_once']()")]
    lines = (f"runpy.run_path({file!r}){call}" for file, call in calls)
    (folder / "sitecustomize.py").write_text("\n".join(["import runpy", *lines, ""]))
