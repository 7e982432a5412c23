"""The cache of a session, as its options say."""

from __future__ import annotations

from nnadapter.caching.context import CachedContext
from nnadapter.caching.usual import folder_of
from nnadapter.drivers.capability import ModelForm, OptionValues
from nnadapter.drivers.interface import Context
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
