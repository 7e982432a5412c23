"""Origins while a model is edited: names of ONNX nodes, and tuples of the same form, so that merging is cheap."""

from __future__ import annotations

Origins = tuple[object, ...]
"""Names, and tuples of names and tuples; `flattened` makes one tuple of it at the end."""


def flattened(origins: Origins) -> tuple[str, ...]:
    """Return the names in order, each once; tuples that occur twice are looked at once."""
    if len(origins) == 1 and type(origins[0]) is str:  # nearly always
        return origins  # type: ignore[return-value]
    if all(type(part) is str for part in origins):
        return tuple(dict.fromkeys(origins))  # type: ignore[arg-type]
    names: dict[str, None] = {}
    visited_ids: set[int] = set()
    stack: list[object] = [origins]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            names[part] = None
        elif isinstance(part, tuple) and id(part) not in visited_ids:
            visited_ids.add(id(part))
            stack.extend(reversed(part))
    return tuple(names)
