"""Write docs/rooms.md: every module of the two packages, by folder, in the first sentence of its docstring.

python docs/make_rooms.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "rooms.md"
_HEAD = """# The rooms

This page is made by `python docs/make_rooms.py`. A test fails when it is not what the code says.

Every module in one sentence, folder by folder: to find where a thing is done. In which order data passes the rooms, and
who may import whom, stands in [architecture](architecture.md).
"""


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    for package in ("partition", "nnadapter"):
        folders = {path.parent for path in (ROOT / package).rglob("*.py")}
        for folder in sorted(folders):
            lines.extend(_room(folder))
    return "\n".join(lines)


def _room(folder: Path) -> Iterator[str]:
    yield f"## {folder.relative_to(ROOT)}"
    yield ""
    modules = sorted(folder.glob("*.py"))
    if modules[0].name == "__init__.py":
        yield _said(modules.pop(0))
        yield ""
    yield from (f"- `{path.name}`: {_said(path)}" for path in modules)
    yield ""


def _said(path: Path) -> str:
    """The first paragraph of what a module says of itself."""
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert told, f"{path} has no docstring"
    return " ".join(told.split("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
