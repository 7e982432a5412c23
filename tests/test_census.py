"""The project stays as small and as plain as it is."""

from __future__ import annotations

from tests.census import figures, limits, mannerisms, tokens


def test_figures_are_within_limits():
    found, most = figures(), limits()
    assert found.keys() == most.keys()
    exceeded = {name: f"{figure}, at most {most[name]}" for name, figure in found.items() if figure > most[name]}
    assert exceeded == {}, "make it smaller, or raise tests/census.toml by what a feature needs"


def test_mannerisms_are_counted():
    assert mannerisms(["Return what runs it, or whoever said so."]) == 1000 * 3 / 8
    assert mannerisms(["Return the engine, and what to do next."]) == 0


def test_tokens_exclude_docstrings_and_comments():
    assert tokens('def f():\n    """Return 1."""\n    return 1  # two words\n') == (7, 3)
