from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nnadapter.candidates import random_feed
from nnadapter.errors import InvalidInputError
from tests.models import HEAD, parse


@pytest.mark.parametrize(("name", "ends"), [("int4", (-8, 7)), ("uint4", (0, 15))])
def test_few_bits_cover_their_range(name, ends):
    text = f"{HEAD.replace('17', '21')} g ({name}[1000] x) => (float[1000] y) {{ y = Cast<to = 1>(x) }}"
    made = random_feed(parse(text))["x"]
    assert made.dtype == np.dtype(getattr(ml_dtypes, name))
    assert (made.astype(int).min(), made.astype(int).max()) == ends


@pytest.mark.parametrize("power", [45, 62])
def test_oversized_random_input_is_refused(power):
    text = f"{HEAD} g (float[{2**power}] x) => (float[{2**power}] y) {{ y = Relu(x) }}"
    with pytest.raises(InvalidInputError, match="input 'x' of shape .* does not fit in memory"):
        random_feed(parse(text))
