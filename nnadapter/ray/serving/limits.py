"""What a request may ask for, at most; each is held before memory is taken for it."""

from __future__ import annotations

BODY_BYTES = 64 << 20
"""Of a whole request, unless the server is told."""
JSON_BYTES = 8 << 20
"""Of its JSON: numbers that are written out take some twenty times as much when they are read. More goes as binary."""
WAITING_BYTES = 1 << 30
"""Of all requests that a replica has at once."""
TENSORS = 256
"""Inputs, and outputs, that a request may name."""
DIMENSIONS = 64
"""Of a tensor."""
NAME_LENGTH = 1024
"""Of an id, which is given back."""
ELEMENTS = 1 << 48
"""That the sizes of a tensor may say, those of 0 left out: no array of numpy has more."""
BODY_SECONDS = 60.0
"""For a body to come, where no deadline is shorter: who sends slowly takes a place of those that may wait."""
