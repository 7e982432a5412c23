"""The definition of the adapter IR: what every operation computes, slowly and obviously, in numpy.

An operation means what its function here does. Documentation, the conformance kit, passes and tests refer to it, and no
device shares code with it. A file holds a family of operations, as in `nnadapter.ir.operations`; `models` holds the
table of all of them, and runs them one after the other.
"""

from nnadapter.ir.definition.models import FUNCTIONS, by_definition

__all__ = ["FUNCTIONS", "by_definition"]
