"""Reading of placement rules from TOML."""

from __future__ import annotations

import os
import tomllib

from msgspec import Struct

from nnadapter import limits
from nnadapter.drivers.registry import device_of, sources
from nnadapter.errors import RulesError, close_names
from nnadapter.files.documents import FileKind
from nnadapter.rules.values import Ban, Limits, Pin, Rules

TEXT = "the rules' text"


def read_rules(source: str | os.PathLike[str] | Rules) -> Rules:
    """Read rules from TOML; CRLF and a byte order mark are accepted.

    Args:
        source: a path; a text of several lines; or `Rules`.

    Raises:
        RulesError: an unreadable file, or invalid rules; names file, rule and key.
    """
    rules = source if isinstance(source, Rules) else _read(source)
    driver_sources = sources()
    for rule in rules:
        if rule.device is not None and device_of(rule.device).partition(":")[0] not in driver_sources:
            raise RulesError(
                f"{rules.entry_location(rule)}: no driver offers a device named {rule.device!r}; "
                f"{close_names(rule.device, driver_sources)}",
                file=rules.source,
                entry=rules.entry(rule),
                key="device",
            )
    return rules


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    pin: tuple[Pin, ...] = ()
    ban: tuple[Ban, ...] = ()
    limits: Limits = Limits()


def _parse(text: str) -> object:
    longest = max(map(len, text.splitlines()), default=0)
    if len(text) > limits.RULES_BYTES or longest > limits.RULES_LINE:
        raise ValueError(
            f"the rules have {len(text):,} characters, {longest:,} of them in one line, expected at most "
            f"{limits.RULES_BYTES:,} and {limits.RULES_LINE:,}"
        )
    return tomllib.loads(text)


_FILE = FileKind(
    name="rules file",
    contents=_Document,
    error=RulesError,
    advice="change the file",
    parse=_parse,
    most_bytes=limits.RULES_BYTES,
    hints={
        "pin": "write [[pin]], with two brackets",
        "ban": "write [[ban]], with two brackets",
        "limits": "write [limits], with one bracket",
    },
)


def _read(path_or_text: object) -> Rules:
    if not isinstance(path_or_text, (str, os.PathLike)):
        raise RulesError(f"rules must be a path, a text or an nnadapter.Rules, got {path_or_text!r}")
    if isinstance(path_or_text, str) and "\n" in path_or_text:
        document, source = _FILE.parsed(path_or_text.removeprefix("\ufeff"), TEXT), TEXT
    else:
        document, source = _FILE.read(path_or_text), os.fsdecode(path_or_text)
    return Rules(pins=document.pin, bans=document.ban, limits=document.limits, source=source)
