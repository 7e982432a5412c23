"""Cache of compiled programs and plans between sessions. docs/cache.md says what is cached, and when it is used again.

folder              keys, entries and their files
fingerprints        fingerprints of drivers, host and machine; model_fingerprints those of models
plan_keys           keys of the plans of a session
context             context of a driver that looks in the cache first
container           format of files of checked parts
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".container": "ALIGNMENT Container ContainerWriter MESSAGES PAGE PREFIX write_container",
        ".context": "DeviceBans FOLDER clear_bans stored_bans",
        ".folder": "Entry Folder Key MADE Miss PARTS UnusableError nearest read_entry text_part write_entry",
        ".keys": "UnkeyedError source_of",
    },
)
