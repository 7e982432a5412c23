"""The plans of a class of shapes whose devices compile for fixed sizes, as sessions keep them (`running.filling`)."""

from __future__ import annotations

from dataclasses import dataclass

from nnadapter.running.compiled import Compiled
from nnadapter.running.filling import Filling
from nnadapter.running.plan_memory import Holding


@dataclass(frozen=True, eq=False, kw_only=True)
class FilledClass(Compiled):
    """A class of shapes; it does not run itself, but the plans that are filled."""

    filling: Filling[Filled]

    @property
    def holding(self) -> Holding:
        """The memory of the programs that serve all of its plans."""
        return self.filling.holding_of(self.filling)

    def close(self) -> None:
        """Close what no plan of the class has."""
        self.filling.release(self.filling)


@dataclass(frozen=True, eq=False, kw_only=True)
class Filled(Compiled):
    """A plan at one set of sizes, whose programs it shares with others of its class."""

    of: Filling[Filled]

    @property
    def holding(self) -> Holding:
        """See `Filling.holding_of`."""
        return self.of.holding_of(self)

    def close(self) -> None:
        """Close what no other plan of the class has."""
        self.plan.close_whole()
        self.of.release(self)
