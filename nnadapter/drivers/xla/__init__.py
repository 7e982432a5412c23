"""xla: XLA's compiler through JAX. A segment becomes one jitted function, compiled ahead of time.

Reading order: engine (boundary to JAX), driver, lowerings, compilation, program.
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".compilation": "Donating usable",
    },
)
