"""Process-wide resources, independent of models: locks, caches, processors, standard output, signals, packages."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".packages": "EXTRAS PlugIn has_extra missing_extra named",
        ".processors": (
            "Load computes_for_this computes_no_more is_crowded machine_description machine_name own_seconds "
            "processors_unused_by_others seconds_of_process usable"
        ),
        ".resources": "Cache cache_counts counts_of memoize new_lock new_re_lock paused_collection",
    },
)
