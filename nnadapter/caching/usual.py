"""Where a session's cache lies, as its options say."""

from __future__ import annotations

from pathlib import Path

from nnadapter.caching.folder import Folder
from nnadapter.files.cache_folder import cache_folder
from nnadapter.options import Options


def folder_of(options: Options) -> Folder:
    """Return the folder of a session's cache; `cache_dir` is a path, or True for the usual one."""
    chosen = options.cache_dir
    path = usual_folder() if chosen is None or isinstance(chosen, bool) else Path(chosen)
    return Folder(path.absolute(), options.max_cache_bytes)


def usual_folder() -> Path:
    """The folder of programs that are kept where a person names none."""
    return cache_folder() / "programs"
