"""What decides what a driver makes of a segment, in parts, so that one can say which of them differ.

device     what the person calls it, and the vendor's name for its hardware
driver     its version, and a digest of its files
host       version of nnadapter, a digest of what makes programs in it; of ONNX Runtime, where that is under the driver
machine    system, processor, what that can do, how many of them
options    of the device, and whether the segment is the whole plan
structure  operations, attributes, data types, what is connected with what: no names
shapes     every dimension
constants  every byte of them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

PARTS = ("device", "driver", "host", "machine", "options", "structure", "shapes", "constants")
"""In the order in which a key names them."""
_OF_MODEL = PARTS.index("structure")
"""From here on they are the segment's."""
_SHORT = 7
"""Digits of a part's digest in a file's name."""
_LONGEST = 120


class KeyPart(NamedTuple):
    """One part of a key."""

    digest: str
    """SHA-256, in hexadecimal digits."""
    words: Mapping[str, str]
    """What it says, for people."""


class Key(NamedTuple):
    """What decides what was made."""

    kind: str
    """`program`, or which question was answered."""
    parts: Mapping[str, KeyPart]
    """By the names of `PARTS`."""

    @property
    def short(self) -> tuple[str, ...]:
        """The beginnings of the parts' digests."""
        return tuple(self.parts[name].digest[:_SHORT] for name in PARTS)

    @property
    def name(self) -> str:
        """Of the file: a digest of the whole key, then the beginnings of its parts' digests."""
        whole = sha256("\n".join((self.kind, *(self.parts[name].digest for name in PARTS))).encode())
        return ".".join((whole.hexdigest()[:32], "-".join(self.short), self.kind))


def text_part(words: Mapping[str, object]) -> KeyPart:
    """Return a part that is what it says."""
    texts = {name: str(value) for name, value in words.items()}
    return KeyPart(sha256(repr(sorted(texts.items())).encode()).hexdigest(), texts)


def short_parts(name: str) -> tuple[str, ...] | None:
    """Return what `Key.short` was of the key that a file is named for; None where it is no such name."""
    pieces = name.split(".")
    parts = tuple(pieces[1].split("-")) if len(pieces) == 3 else ()
    return parts if len(parts) == len(PARTS) else None


def nearest(key: Key, names: Sequence[str]) -> str | None:
    """Return the file, of some of the key's kind, that is most like it; None where nothing of the model is the same."""
    wanted = key.short

    def likeness(name: str) -> tuple[int, tuple[bool, ...]]:
        equal = tuple(one == other for one, other in zip(wanted, short_parts(name) or (), strict=False))
        # The model counts more: a segment of another model on the same device is nothing to compare with.
        return sum(equal) + 2 * sum(equal[_OF_MODEL:]), equal

    best = max(names, key=likeness, default=None)
    return best if best is not None and any(likeness(best)[1][_OF_MODEL:]) else None


def differences(key: Key, other: Mapping[str, KeyPart]) -> tuple[str, ...]:
    """Return the parts in which a key differs from that of an entry, in words."""
    return tuple(
        _difference(name, other[name], key.parts[name])
        for name in PARTS
        if name not in other or other[name].digest != key.parts[name].digest
    )


def _difference(name: str, there: KeyPart, here: KeyPart) -> str:
    changed = [
        f"{word} {_shown(there.words.get(word))} there, {_shown(here.words.get(word))} here"
        for word in dict.fromkeys((*there.words, *here.words))
        if there.words.get(word) != here.words.get(word)
    ]
    return f"{name} ({'; '.join(changed)})" if changed else name


def _shown(text: str | None) -> str:
    if text is None:
        return "nothing"
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
