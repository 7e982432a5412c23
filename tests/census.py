"""Figures of size and language of the project. `python -m tests.census` prints them beside their limits.

tests/census.toml has the limits. A feature may raise a limit by what it needs, in the same commit. Other commits may
only lower them.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS = Path(__file__).with_name("census.toml")
PUBLIC = frozenset(
    (
        "nnadapter",
        "partition",
        "nnadapter.drivers",
        "nnadapter.ir",
        "nnadapter.rules",
        "nnadapter.errors",
        "nnadapter.testing",
    )
)
GENERATED = ("operations", "reference")
"""Folders of generated documentation."""
MANNERISMS = re.compile(
    r"""(?<!and\ )\bwhat\ (?!is\ the\b|happens\b|to\b|if\b)\w+
    | \b(?:whoever|nobody|somebody|whose|who)\b
    | \b(?:told|tells?|says|said)\b
    | \b(?:behind|anew|alike|besides?|thereof|but\ for)\b
    | \bhangs?\ on\b
    | \b(?:those|that)\ of\b | \bthose\ that\b
    | \bstands?\b
    | \b(?:of|in|to|by|for|with|at|from|after|before)\ which\b
    | \belse\b(?!\ if)
    | (?<=[,;]\ )where\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Phrases that paraphrase a thing instead of naming it."""
_LAYOUT = frozenset((
    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER,
))  # fmt: skip
_FSTRING_START, _FSTRING_END = (getattr(tokenize, name, -1) for name in ("FSTRING_START", "FSTRING_END"))


@cache
def sources(*folders: str) -> dict[Path, str]:
    """Return the Python files below some folders."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path: path.read_text(encoding="utf-8") for path in paths}


def docstrings(source: str) -> Iterator[str]:
    """Yield every docstring, including those of attributes."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def tokens(source: str) -> tuple[int, int]:
    """Return the number of tokens without docstrings, and of words in comments."""
    count = words = depth = 0
    is_start = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        depth += token.type == _FSTRING_START
        if depth:  # an f-string is one token, as before Python 3.12
            depth -= token.type == _FSTRING_END
            count += not depth and not is_start
        elif token.type == tokenize.COMMENT:
            words += len(token.string.split())
        elif token.type in _LAYOUT:
            is_start = True
        elif token.type != tokenize.STRING or not is_start:
            is_start = False
            count += 1
    return count, words


def import_lines(source: str) -> int:
    """Return the number of lines of import statements."""
    statements = (node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in statements)


def mannerisms(texts: Iterable[str]) -> float:
    """Return the number of mannerisms per 1,000 words."""
    joined = "\n\n".join(texts)
    return round(1000 * len(MANNERISMS.findall(joined)) / max(len(joined.split()), 1), 2)


def figures() -> dict[str, float]:
    """Return every figure by name."""
    package, tests = sources("nnadapter", "partition"), sources("tests", "benchmarks", "examples")
    counted = [tokens(source) for source in package.values()]
    prose = [text for source in package.values() for text in docstrings(source)]
    pages = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
    by_hand = [text for path, text in pages.items() if not set(GENERATED) & set(path.parts)]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in package}
    named = {name for source in tests.values() for name in re.findall(r"\b(?:nnadapter|partition)(?:\.\w+)+\b", source)}
    return {
        "lines": sum(source.count("\n") for source in package.values()),
        "code_tokens": sum(code for code, _ in counted),
        "files": len(package),
        "largest_file": max(source.count("\n") for source in package.values()),
        "import_lines": sum(map(import_lines, package.values())),
        "prose_words": sum(len(text.split()) for text in prose) + sum(words for _, words in counted),
        "documentation_words": sum(len(text.split()) for text in by_hand),
        "internal_modules_in_tests": len(named & modules - PUBLIC),
        "mannerisms": mannerisms(prose),
        "mannerisms_in_documentation": mannerisms(
            re.sub(r"```.*?```", "", text, flags=re.DOTALL) for text in pages.values()
        ),
        "mannerisms_in_tests": mannerisms(text for source in tests.values() for text in docstrings(source)),
    }


def limits() -> dict[str, float]:
    """Return the limit of every figure."""
    return tomllib.loads(LIMITS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for name, figure in figures().items():
        print(f"{figure:>12,}  at most {limits().get(name, 0):>10,}  {name}")
