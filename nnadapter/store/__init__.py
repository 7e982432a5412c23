"""Cache of compiled programs and plans between sessions; see docs/cache.md.

folder      entries by key, their files, and eviction by size
keys        keys of a session's plans: fingerprints of drivers, machine and model, and options
context     device context that reads programs from the cache first
bans        parts of models that a device does not get again
container   file format of checked parts
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".container": "ALIGNMENT Container ContainerWriter MESSAGES PAGE PREFIX write_container",
        ".bans": "DeviceBans FOLDER clear_bans stored_bans",
        ".folder": "Entry Folder Key MADE Miss PARTS UnusableError nearest read_entry text_part write_entry",
        ".keys": "UnkeyedError source_of",
    },
)
