"""Inputs in whose memory XLA makes results: what JAX calls donated buffers.

A segment is compiled once more for each set of inputs that are given up, when that is first seen; behind a number of
sets nothing more is donated. Where none of its results has the data type and the shape of an input, XLA has no use for
its memory, and it is not donated either.

Source: `donate_argnums` of `jax.jit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.xla.engine import module, own_settings, translated
from nnadapter.errors import CompilationError, ExecutionError
from nnadapter.process.forking import new_lock

if TYPE_CHECKING:
    from nnadapter.drivers.xla.compiling import Compiled


_MOST_FORMS = 16
"""Of one segment."""


class Donating:
    """The forms of one segment that take memory of inputs. Usable from many threads at once."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._lock = new_lock()
        self._forms: dict[tuple[int, ...], Any] = {}

    def start(self, inputs: Sequence[Any], given_up: Sequence[int]) -> Sequence[Any] | None:
        """JAX's arrays of the results, which XLA may still be computing; None where it has no use for the memory.

        Args:
            inputs: JAX's arrays.
            given_up: positions of those that nobody reads behind this.

        Raises:
            ExecutionError: XLA fails.
        """
        key = tuple(given_up)
        with translated("XLA failed", "see its message", ExecutionError), own_settings():
            with self._lock:
                if key not in self._forms and len(self._forms) < _MOST_FORMS:
                    self._forms[key] = self._form_or_none(key)
                form = self._forms.get(key)
            if form is None:
                return None
            executable, donated = form
            rest = [value for position, value in enumerate(inputs) if position not in donated]
            results: Sequence[Any] = executable([inputs[index] for index in donated], rest, self._compiled.constants)
            return results

    def _form_or_none(self, given_up: tuple[int, ...]) -> tuple[Any, tuple[int, ...]] | None:
        """None where XLA does not compile it, too: there is the segment as it was compiled first."""
        with (
            suppress(CompilationError),
            translated("XLA did not compile the segment", "see its message", CompilationError),
        ):
            return self._form(given_up)
        return None

    def _form(self, given_up: tuple[int, ...]) -> tuple[Any, tuple[int, ...]] | None:
        jax, compiled = module(), self._compiled
        function = jax.export.deserialize(bytearray(compiled.exported))
        at = jax.sharding.SingleDeviceSharding(compiled.device)
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=at) for aval in function.in_avals]
        inputs, constants = jax.tree.unflatten(function.in_tree, shapes)[0]
        donated = usable(given_up, [_kind(spec) for spec in inputs], [_kind(spec) for spec in function.out_avals])
        if not donated:
            return None

        def segment(given: Sequence[Any], rest: Sequence[Any], constants: Sequence[Any]) -> Any:
            kept = iter(rest)
            by_position = dict(zip(donated, given, strict=True))
            every = [by_position[place] if place in by_position else next(kept) for place in range(len(inputs))]
            return function.call(every, constants)

        rest = [spec for position, spec in enumerate(inputs) if position not in donated]
        jitted = jax.jit(segment, donate_argnums=(0,))
        return jitted.lower([inputs[index] for index in donated], rest, constants).compile(), donated


def usable(given_up: Sequence[int], inputs: Sequence[Any], results: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the inputs whose memory a result can take: each result takes one.

    Args:
        given_up: positions among the inputs.
        inputs: data type and shape of each.
        results: of each.
    """
    left, taken = Counter(results), []
    for position in given_up:
        if left[inputs[position]]:
            left[inputs[position]] -= 1
            taken.append(position)
    return tuple(taken)


def _kind(typed: Any) -> tuple[str, tuple[int, ...]]:
    return str(typed.dtype), tuple(typed.shape)
