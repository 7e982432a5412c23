"""Operations from outside: rows that packages bring, by entry points of the group `nnadapter.operations`.

An entry point's name is the operation's type, its value names the row (`package.module:ROW`), an `OperationSchema` with
a `definition`. Entry points are read when an operation is asked for that the schema table does not have.
"""

from __future__ import annotations

from nnadapter.ir.operations.brought_row import checked_row
from nnadapter.ir.schema import OperationSchema
from nnadapter.process.packages import PlugIns

GROUP = "nnadapter.operations"
"""The entry point group."""


def brought_operations(own: frozenset[str]) -> PlugIns[OperationSchema]:
    """Return the operations that distributions bring.

    Args:
        own: the names of the schema table, which nobody else can take.
    """

    def problem(name: str) -> str:
        if name in own:
            return "nnadapter has an operation of that name; its vendor must take another"
        if not name.isidentifier() or not name.isascii() or name != name.upper():
            return "it is no name of an operation, such as ACME_SWISH; its vendor must take another"
        return ""

    return PlugIns(GROUP, checked_row, problem)
