"""The cache of a session, as its options say."""

from __future__ import annotations

from pathlib import Path

from nnadapter.caching.context import CachedContext
from nnadapter.caching.folder import Folder
from nnadapter.drivers.capability import ModelForm, OptionValues
from nnadapter.drivers.interface import Context
from nnadapter.files.cache_folder import cache_folder
from nnadapter.options import Options


def cached_context(
    context: Context, device: str, form: ModelForm, options: OptionValues, session: Options
) -> CachedContext:
    """Return a context with the cache of a session around it, which has one.

    Args:
        context: the driver's own, maybe with kernels around it.
        device: its name.
        form: of the models that it takes.
        options: of the context, all of them.
        session: options of the session.
    """
    return CachedContext(context, device, form, options, folder_of(session))


def folder_of(options: Options) -> Folder:
    """Return the folder of a session's cache; `cache_dir` is a path, or True for the usual one."""
    chosen = options.cache_dir
    path = usual_folder() if chosen is None or isinstance(chosen, bool) else Path(chosen)
    return Folder(path.absolute(), options.max_cache_bytes)


def usual_folder() -> Path:
    """The folder of programs that are kept where a person names none."""
    return cache_folder() / "programs"
