"""Attributes that have to fit the inputs' types or each other, for `recipes`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from string import ascii_lowercase

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operations.matrix import PACKED_BITS
from nnadapter.ir.schema import AttributeValue
from nnadapter.testing.random_models.generic import Types, axis_of, first_of

Chosen = dict[str, AttributeValue]
Attributes = Callable[[Random, Types], Chosen]
"""Some of an operation's attributes; the others are chosen by name or kind."""


def none(random: Random, types: Types) -> Chosen:
    """Leaves all to name and kind."""
    return {}


def divisors(number: int) -> list[int]:
    """What `number` can be parted by; nothing fits where there is nothing to part."""
    if number == 0:
        raise InvalidModelError("there is nothing to part")
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def convolution(random: Random, types: Types) -> Chosen:
    """The group that image and filter agree on; `operands.convolution` made them."""
    image, filter_ = first_of(types), types[1]
    assert filter_ is not None
    channels = image.dimensions[3 if image.layout == "NHWC" else 1]
    return {"group": max(1, channels // max(1, filter_.dimensions[1]))}


def transposed_convolution(random: Random, types: Types) -> Chosen:
    """Any divisor of the channels as group, and less padding of the output than each stride is (ONNX)."""
    filter_ = types[1]
    assert filter_ is not None
    group = random.choice(divisors(filter_.dimensions[0]))
    strides = tuple(random.choice((1, 2)) for _ in range(2))
    padding = tuple(random.choice((0, 0, stride - 1)) for stride in strides)
    return {"group": group, "strides": strides, "output_padding": padding}


def cast(random: Random, types: Types) -> Chosen:
    """Any data type that is common."""
    return {"to": random.choice(["float32", "float32", "float16", "int8", "uint8", "int32", "int64", "bool"])}


def equation(random: Random, types: Types) -> Chosen:
    """A label for each axis, which axes of one size may share, and some labels in some order as the result."""
    sizes: dict[str, int] = {}
    terms: list[str] = []
    for type_ in types:
        term = ""
        for size in () if type_ is None else type_.dimensions:
            shared = [label for label in sizes if sizes[label] == size and label not in term]
            label = random.choice(shared) if shared and random.random() < 0.6 else ascii_lowercase[len(sizes)]
            sizes[label], term = size, term + label
        terms.append(term)
    result = random.sample(list(sizes), random.randint(0, len(sizes)))
    return {"equation": ",".join(terms) + random.choice(("", f"->{''.join(result)}"))}


def twice(random: Random, types: Types) -> Chosen:
    """A picture that is twice as high and as wide."""
    return {"output_shape": tuple(2 * size for size in first_of(types).dimensions[2:])}


def clip(random: Random, types: Types) -> Chosen:
    """Limits on either side of 0, or none."""
    infinity = float("inf")
    return {"min": random.choice((-infinity, -1.0, 0.0, 0.5)), "max": random.choice((infinity, 1.0, 6.0, 0.5, -2.0))}


def few_bits(random: Random, types: Types) -> Chosen:
    """Bits and block size that the weights agree with; `operands.few_bits` made them."""
    depth, weight = first_of(types).dimensions[-1], types[1]
    assert weight is not None
    _, blocks, size = weight.dimensions
    fitting = [bits for bits in PACKED_BITS if -(-depth // (size * 8 // bits)) == blocks]
    bits = random.choice(fitting)
    return {"bits": bits, "block_size": size * 8 // bits}


def response(random: Random, types: Types) -> Chosen:
    """Factors that keep the denominator away from 0."""
    return {"alpha": random.choice((1e-4, 0.5, 1.0)), "bias": random.choice((0.5, 1.0, 2.0)), "beta": 0.75}


def late_axis(random: Random, types: Types) -> Chosen:
    """An axis from which on the second input spreads."""
    first, second = first_of(types), types[1]
    assert second is not None
    least = max(second.rank, 1)
    if least > first.rank:
        raise InvalidModelError("the scale has more axes than the input")
    return {"axis": random.randint(0, first.rank - least)}


def pads(random: Random, types: Types) -> Chosen:
    """Begin of every axis, then end of every axis; some take elements away."""
    return {"pads": tuple(random.choice((0, 0, 0, 1, 1, 2, -1)) for _ in range(2 * first_of(types).rank))}


def shape(random: Random, types: Types) -> Chosen:
    """The same elements in another shape: axes joined, parted, or of size 1 put in."""
    remaining_elements, result = first_of(types).size, list[int]()
    if remaining_elements == 0:
        return {"shape": first_of(types).dimensions}
    while len(result) < random.randint(0, 4):
        size = random.choice(
            [divisor for divisor in range(1, min(remaining_elements, 12) + 1) if remaining_elements % divisor == 0]
        )
        result.append(size)
        remaining_elements //= size
    if remaining_elements > 1 or random.random() < 0.2:
        result.append(remaining_elements)
    random.shuffle(result)
    return {"shape": tuple(result)}


def expanded(random: Random, types: Types) -> Chosen:
    """The input's dimensions with axes in front, and some of size 1 spread."""
    grown = tuple(random.choice((1, 2, 3)) if size == 1 else size for size in first_of(types).dimensions)
    front = tuple(random.choice((1, 2)) for _ in range(random.choice((0, 0, 1))))
    return {"shape": front + grown}


def repeats(random: Random, types: Types) -> Chosen:
    """One or two of most axes."""
    return {"repeats": tuple(random.choice((1, 1, 2, 3)) for _ in first_of(types).dimensions)}


def perm(random: Random, types: Types) -> Chosen:
    """Any order; as an image with channels last once in a while."""
    rank = first_of(types).rank
    if rank == 4 and random.random() < 0.3:
        return {"perm": (0, 2, 3, 1), "output_layout": "NHWC"}
    return {"perm": tuple(random.sample(range(rank), rank)), "output_layout": "NCHW"}


def slices(random: Random, types: Types) -> Chosen:
    """Bounds within each axis, forwards and backwards."""
    dimensions = first_of(types).dimensions
    axes = random.sample(range(len(dimensions)), random.randint(0, len(dimensions)))
    chosen = [_slice(random, dimensions[axis]) for axis in axes]
    starts, ends, steps = (tuple(bounds[part] for bounds in chosen) for part in range(3))
    return {"axes": tuple(axes), "starts": starts, "ends": ends, "steps": steps}


def _slice(random: Random, size: int) -> tuple[int, int, int]:
    step = random.choice((1, 1, 2, 3, -1, -2))
    if step > 0:
        start = random.randint(0, max(0, size - 1))
        return start, random.randint(min(start + 1, size), size), step
    return max(0, size - 1), random.choice((0, -(size + 1))), step


def split(random: Random, types: Types) -> Chosen:
    """Parts of one axis that make up the whole."""
    axis = axis_of(random, types)
    size = first_of(types).dimensions[axis]
    cuts = sorted(random.randint(0, size) for _ in range(random.choice((0, 1, 1, 2))))
    return {"axis": axis, "split": tuple(b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True))}


def top_k(random: Random, types: Types) -> Chosen:
    """An axis, and at most all of its elements."""
    axis = axis_of(random, types)
    return {"axis": axis, "k": random.randint(1, max(1, first_of(types).dimensions[axis])), "sorted": True}


def resized(random: Random, types: Types) -> Chosen:
    """Sizes of which some change, and their scales."""
    dimensions = first_of(types).dimensions
    sizes = tuple(size if random.random() < 0.5 else random.choice((1, 2, 3, 5, 2 * size)) for size in dimensions)
    return {
        "shape": sizes,
        "scales": tuple(
            target_size / max(1, source_size) for target_size, source_size in zip(sizes, dimensions, strict=True)
        ),
    }
