"""XLA's compiler through JAX: a segment becomes one jitted function, compiled ahead of time.

`engine` is the border to the package, `driver` the way in, `context` answers and compiles. `lowerings` has a function
of `jax.numpy` for every operation, in the table of `nnadapter.drivers.table_driver`; `compiling` makes one function
of a segment, `program` holds what XLA made of it, `execution` runs that, `memory` is what values stay in.
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".compilation": "Donating usable",
    },
)
