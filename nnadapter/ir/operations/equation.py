"""EINSUM equations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.records import dataclass

_ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class Equation:
    """Equation of EINSUM. The labels of axes are letters; axes of an ellipsis have numbers as labels."""

    terms: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(label for term in self.terms for label in term))


def read_equation(text: str, ranks: Sequence[int]) -> Equation:
    """Parse an equation for inputs of these ranks. Source: ONNX Einsum-28.

    1. Terms consist of letters and at most one ellipsis; spaces are ignored.
    2. All ellipses cover equally many axes. An explicit result needs an ellipsis if a term has one.
    3. Without `->`, the result is the ellipsis and the letters that occur once, in ASCII order.

    Raises:
        InvalidModelError: malformed, or it does not fit the ranks.
    """
    parts, result = terms_of(text)
    if len(parts) != len(ranks):
        raise InvalidModelError(f"equation {text!r} has {len(parts)} terms, expected {len(ranks)}, one per input")
    hidden = _hidden(text, parts, ranks)
    axes = tuple(str(axis) for axis in range(hidden or 0))
    terms = tuple(_written_out(part, axes) for part in parts)
    if result is None:
        counts = Counter(letter for part in parts for letter in "".join(part))
        result = ("", "".join(sorted(letter for letter, count in counts.items() if count == 1)))
    elif hidden is not None and len(result) == 1:
        raise InvalidModelError(f"equation {text!r} has '...' in a term, expected it in the result too")
    return Equation(terms, _checked(text, _written_out(result, axes), terms))


def terms_of(text: str) -> tuple[list[tuple[str, ...]], tuple[str, ...] | None]:
    """Return the labels of each term and of the result, each split at the ellipsis; None for an absent result.

    Raises InvalidModelError.
    """
    term_texts, arrow, result_text = text.replace(" ", "").partition("->")
    return [_split(text, term) for term in term_texts.split(",")], _split(text, result_text) if arrow else None


def _split(text: str, term: str) -> tuple[str, ...]:
    parts = tuple(term.split(_ELLIPSIS))
    letters = "".join(parts)
    if len(parts) > 2 or not (letters == "" or (letters.isascii() and letters.isalpha())):
        raise InvalidModelError(f"equation {text!r} has the term {term!r}, expected letters and one '...' at most")
    return parts


def _hidden(text: str, parts: Sequence[tuple[str, ...]], ranks: Sequence[int]) -> int | None:
    axis_count: int | None = None
    for part, rank in zip(parts, ranks, strict=True):
        axes = rank - len("".join(part))
        if len(part) == 1 and axes != 0:
            raise InvalidModelError(
                f"equation {text!r} has the term {part[0]!r} for rank {rank}, expected a label per axis"
            )
        if len(part) == 2 and (axes < 0 or axis_count not in (None, axes)):
            raise InvalidModelError(
                f"equation {text!r} has '...' for {axes} axes of an input of rank {rank}, "
                f"expected {'0 or more' if axis_count is None else axis_count}"
            )
        axis_count = axes if len(part) == 2 else axis_count
    return axis_count


def _written_out(part: tuple[str, ...], axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part[0]) if len(part) == 1 else (*part[0], *axes, *part[1])


def _checked(text: str, result: tuple[str, ...], terms: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    labels = {label for term in terms for label in term}
    strange = [label for label, count in Counter(result).items() if count > 1 or label not in labels]
    if strange:
        raise InvalidModelError(
            f"equation {text!r} has {strange[0]!r} in the result, expected labels of the terms, none twice"
        )
    return result


def label_sizes(equation: Equation, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the size of each label, for inputs of these shapes. Axes of size 1 broadcast. Raises InvalidModelError."""
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.terms, shapes, strict=True):
        for label, size in zip(term, shape, strict=True):
            earlier_size = sizes.get(label, 1)
            if earlier_size != 1 and size != 1 and earlier_size != size:
                raise InvalidModelError(f"label {label!r} has sizes {earlier_size} and {size}, expected equal or 1")
            sizes[label] = size if earlier_size == 1 else earlier_size
    return sizes
