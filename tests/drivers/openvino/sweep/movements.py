from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from tests.drivers.openvino.sweep.attributes import Shape, axes, axis, choice_of
from tests.drivers.openvino.sweep.forms import Draft
from tests.drivers.openvino.sweep.shapes import ALL_NUMBERS, chosen, integers, narrowed, picture, some_shape


def reshape(draft: Draft) -> None:
    random, shape = draft.random, some_shape(draft.random)
    draft.shapes = [shape]
    draft.kinds = ALL_NUMBERS
    draft.draw_attributes(shape)
    to = (
        [0 if random.random() < 0.2 else size for size in shape] if random.random() < 0.4 else _regrouped(random, shape)
    )
    if to and random.random() < 0.4:
        to[random.randrange(len(to))] = -1
    integers(draft, 1, to)


def _regrouped(random: Random, shape: Shape) -> list[int]:
    remaining, sizes = int(np.prod(shape)), []
    while remaining > 1 or random.random() < 0.2:
        sizes.append(random.choice([divisor for divisor in range(1, remaining + 1) if remaining % divisor == 0]))
        remaining //= sizes[-1]
    return sizes


def squeeze(draft: Draft) -> None:
    shape = tuple(draft.random.choices((1, 1, 2, 3), k=draft.random.randint(0, 5)))
    draft.shapes = [shape]
    draft.kinds = ALL_NUMBERS
    draft.draw_attributes(shape)
    if draft.has_input(1) and (draft.op_type == "Unsqueeze" or draft.random.random() < 0.8):
        choice = choice_of(draft.op_type, "axes")
        integers(draft, 1, choice(draft.random, shape))


def split(draft: Draft) -> None:
    shape = some_shape(draft.random, 1)
    draft.kinds = ALL_NUMBERS
    draft.shapes = [shape]
    draft.attributes = {"axis": axis(draft.random, shape)}
    along = (shape[draft.attributes["axis"]],)
    draft.draw_attributes(along)
    sizes = draft.attributes.get("split") or chosen(draft, "split", along)
    has_attribute = "split" in draft.attributes
    if draft.has_input(1) and draft.random.random() < 0.7:
        draft.attributes.pop("num_outputs", None)
        integers(draft, 1, sizes)
        has_attribute = True
    draft.outputs = (
        len(sizes) if has_attribute else draft.attributes.get("num_outputs", draft.random.choice((1, along[0])))
    )


def expand(draft: Draft) -> None:
    shape = some_shape(draft.random)
    draft.kinds = ALL_NUMBERS
    draft.shapes = [narrowed(draft.random, shape)]
    integers(draft, 1, narrowed(draft.random, shape))


def tile(draft: Draft) -> None:
    shape = some_shape(draft.random, 0, 4)
    draft.kinds = ALL_NUMBERS
    draft.shapes = [shape]
    integers(draft, 1, [draft.random.choice((1, 1, 2, 3)) for _ in shape])


def trilu(draft: Draft) -> None:
    shape = some_shape(draft.random, 2)
    draft.kinds = ALL_NUMBERS
    draft.shapes = [shape]
    draft.draw_attributes(shape)
    if draft.random.random() < 0.7:
        integers(draft, 1, draft.random.randint(-6, 6))


def slices(draft: Draft) -> None:
    random, shape = draft.random, some_shape(draft.random, 1)
    draft.kinds = ALL_NUMBERS
    draft.shapes = [shape]
    draft.draw_attributes(shape)
    along = [at % len(shape) for at in axes(random, shape)] or [0]
    if not draft.has_input(1):
        for name in ("starts", "ends"):
            draft.attributes[name] = chosen(draft, name, tuple(shape[at] for at in along))
        draft.attributes["axes"] = [at - random.choice((0, len(shape))) for at in along]
        return
    is_complete = random.random() < 0.2
    along = list(range(len(shape))) if is_complete else along
    steps = [random.choice((1, 1, 2, 3, -1, -2)) for _ in along]
    begins = [
        random.choice((0, 1, -1, -2, 50)) if step > 0 else random.choice((-1, shape[at], 50))
        for at, step in zip(along, steps, strict=True)
    ]
    ends = [
        random.choice((shape[at], -1, 50)) if step > 0 else random.choice((0, -50, -shape[at] - 1))
        for at, step in zip(along, steps, strict=True)
    ]
    dtype = random.choice((np.int64, np.int32))
    integers(draft, 1, begins, dtype)
    integers(draft, 2, ends, dtype)
    if not is_complete:
        integers(draft, 3, [at - random.choice((0, len(shape))) for at in along], dtype)
    if random.random() < 0.8:
        integers(draft, 4, steps, dtype)


def pad(draft: Draft) -> None:
    random, shape = draft.random, some_shape(draft.random, 1)
    draft.kinds = ALL_NUMBERS
    draft.shapes = [shape]
    draft.draw_attributes(shape)
    if not draft.has_input(1):
        return
    some = axes(random, shape) if draft.has_input(3) and random.random() < 0.5 else None
    integers(draft, 1, chosen(draft, "pads", shape if some is None else tuple(some)))
    draft.shapes += [None, random.choice((None, ()))]
    if some is not None:
        integers(draft, 3, some, random.choice((np.int64, np.int32)))


def gather(draft: Draft) -> None:
    random, shape = draft.random, some_shape(draft.random, 1)
    draft.kinds = ALL_NUMBERS
    draft.shapes = [shape]
    draft.attributes = {"axis": axis(random, shape)} if random.random() < 0.8 else {}
    at = draft.attributes.get("axis", 0)
    index_shape = some_shape(random, 0, 3)
    if draft.op_type == "GatherElements":
        index_shape = tuple(random.randint(1, size) for size in shape)
        index_shape = (*index_shape[: at % len(shape)], random.randint(1, 4), *index_shape[at % len(shape) + 1 :])
    _indices(draft, index_shape, [shape[at]] * int(np.prod(index_shape)))


def _indices(draft: Draft, shape: Shape, sizes: Sequence[int]) -> None:
    """Draw indices, some counted from the end."""
    values = [draft.random.randrange(-size, size) for size in sizes]
    draft.arrays[1] = np.array(values, draft.random.choice((np.int64, np.int32))).reshape(shape)


def gather_nd(draft: Draft) -> None:
    random, shape = draft.random, some_shape(draft.random, 1)
    draft.shapes = [shape]
    draft.kinds = ALL_NUMBERS
    batch = random.randint(0, min(2, len(shape) - 1)) if "batch_dims" in draft.schema.attributes else 0
    if batch or random.random() < 0.5:
        draft.attributes = {"batch_dims": batch} if "batch_dims" in draft.schema.attributes else {}
    depth = random.randint(1, len(shape) - batch)
    outer = (*shape[:batch], *some_shape(random, 0, 2))
    sizes = list(shape[batch : batch + depth]) * int(np.prod(outer))
    _indices(draft, (*outer, depth), sizes)
    draft.arrays[1] = draft.arrays[1].astype(np.int64)


def scatter_elements(draft: Draft) -> None:
    """Draw updates of distinct elements, or of any elements if they are reduced."""
    random, shape = draft.random, some_shape(draft.random, 1)
    draft.kinds = ALL_NUMBERS
    draft.draw_attributes(shape)
    at = draft.attributes.get("axis", 0) % len(shape)
    updates = tuple(random.randint(1, size) for size in shape)
    draft.shapes = [shape, None, updates]
    lines = [_places(draft, shape[at], updates[at]) for _ in range(int(np.prod(updates)) // updates[at])]
    places = np.array(lines).reshape((*updates[:at], *updates[at + 1 :], updates[at]))
    draft.arrays[1] = np.moveaxis(places, -1, at).astype(random.choice((np.int64, np.int32)))


def scatter_nd(draft: Draft) -> None:
    """Draw updates of distinct slices, or of any slices if they are reduced."""
    random, shape = draft.random, some_shape(draft.random, 1)
    draft.kinds = ALL_NUMBERS
    draft.draw_attributes(shape)
    depth = random.randint(1, len(shape))
    slices = int(np.prod(shape[:depth]))
    outer = random.choice(
        [candidate for candidate in ((), (1,), (2,), (3,), (2, 2)) if np.prod(candidate, dtype=int) <= slices]
    )
    draft.shapes = [shape, None, (*outer, *shape[depth:])]
    places = np.array(_places(draft, slices, int(np.prod(outer, dtype=int)))) % slices
    indices = np.stack(np.unravel_index(places, shape[:depth]), -1).reshape((*outer, depth))
    from_the_end = np.array([[random.choice((0, 1)) for _ in range(depth)] for _ in places]).reshape(indices.shape)
    draft.arrays[1] = (indices - from_the_end * np.array(shape[:depth])).astype(np.int64)


def _places(draft: Draft, size: int, count: int) -> list[int]:
    """Draw positions, some counted from the end, distinct unless updates are reduced."""
    reduces = draft.attributes.get("reduction", "none") != "none"
    drawn = draft.random.choices(range(size), k=count) if reduces else draft.random.sample(range(size), count)
    return [place - draft.random.choice((0, size)) for place in drawn]


def concat(draft: Draft) -> None:
    shape = some_shape(draft.random, 1)
    draft.kinds = ALL_NUMBERS
    draft.draw_attributes(shape)
    at = draft.attributes["axis"] % len(shape)
    draft.shapes = [
        (*shape[:at], draft.random.randint(1, 4), *shape[at + 1 :]) for _ in range(draft.random.randint(1, 4))
    ]


def blocks(draft: Draft) -> None:
    random = draft.random
    size = random.choice((1, 2, 3))
    draft.attributes = {"blocksize": size}
    batch, channels, height, width = (random.randint(1, 3) for _ in range(4))
    depth = draft.op_type == "DepthToSpace"
    draft.shapes = [
        (batch, channels * size * size, height, width) if depth else (batch, channels, height * size, width * size)
    ]
    draft.kinds = ALL_NUMBERS
    draft.draw_attributes(draft.shapes[0])


def resize(draft: Draft) -> None:
    random = draft.random
    shape = random.choice((picture(random), picture(random), picture(random), some_shape(random, 1)))
    draft.shapes = [shape]
    draft.draw_attributes(shape)
    if random.random() < 0.7:
        for name in ("antialias", "exclude_outside", "keep_aspect_ratio_policy", "axes"):
            draft.attributes.pop(name, None)
    along = tuple(shape[at] for at in draft.attributes.get("axes", range(len(shape))))
    factors = random.choice(((1, 2, 3), (0.5, 1, 2), (1, 1.5, 2.6), (0.6, 1, 1.3)))
    first = 0 if random.random() < 0.1 else 2
    scales = [
        1.0 if at % len(shape) < first else random.choice(factors)
        for at in draft.attributes.get("axes", range(len(shape)))
    ]
    if draft.schema.since_version == 10:
        draft.arrays[1] = np.array(scales, np.float32)
        return
    if draft.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize" or random.random() < 0.1:
        draft.arrays[1] = np.array(
            [random.choice((0, 0.2)) for _ in along] + [random.choice((1, 0.8)) for _ in along], np.float32
        )
    if random.random() < 0.5:
        draft.arrays[2] = np.array(scales, np.float32)
    else:
        draft.arrays[2] = np.array([], np.float32)
        integers(draft, 3, [max(1, int(size * scale)) for size, scale in zip(along, scales, strict=True)])
    if draft.schema.since_version < 13:
        draft.arrays.setdefault(1, np.array([], np.float32))
    elif 3 in draft.arrays:
        del draft.arrays[2]


def upsample(draft: Draft) -> None:
    draft.shapes = [draft.random.choice((picture(draft.random), some_shape(draft.random, 1)))]
    draft.draw_attributes(draft.shapes[0])
    if draft.has_input(1):
        draft.arrays[1] = np.array(chosen(draft, "scales", draft.shapes[0]), np.float32)
