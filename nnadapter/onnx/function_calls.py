"""How many nodes the calls of a model's functions come to, told before anybody expands them.

onnx's inference and ONNX Runtime expand calls inside of calls. Functions that each call the next one twice double with
every one of them: forty need 2 ** 40 nodes, and a kilobyte.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from nnadapter import limits
from nnadapter.errors import InvalidModelError
from nnadapter.onnx.nodes import FunctionKey, key_of, with_nested


def check_calls(model: onnx.ModelProto) -> None:
    """Raise InvalidModelError for functions that call themselves, or come to far more nodes than are written."""
    if not model.functions:
        return
    bodies = {key_of(function): [key_of(node) for node in with_nested(function.node)] for function in model.functions}
    nodes = [key_of(node) for node in with_nested(model.graph.node)]
    sizes = _sizes(bodies)
    written = len(nodes) + sum(map(len, bodies.values()))
    most = max(limits.EXPANDED_NODES, limits.EXPANSION * written)
    total = sum(sizes.get(key, 1) for key in nodes)
    largest = max((*sizes.values(), total))
    if largest > most:
        raise InvalidModelError(
            f"calls of the model's functions come to {_told(largest)} nodes, expected at most {most:,} where "
            f"{written:,} are written; export it without functions, or with fewer calls inside of calls"
        )


def check_calls_in(source: str | os.PathLike[str] | bytes) -> None:
    """The same by path or contents. Nothing else is checked of them."""
    model = onnx.ModelProto()
    with suppress(DecodeError, UnicodeDecodeError):
        model.ParseFromString(source if isinstance(source, bytes) else Path(source).read_bytes())
        check_calls(model)


def _sizes(bodies: dict[FunctionKey, list[FunctionKey]]) -> dict[FunctionKey, int]:
    """How many nodes a call of each function comes to; those that are called first."""
    sizes: dict[FunctionKey, int] = {}
    for function in bodies:
        path, entered = [function], set[FunctionKey]()
        while path:
            current = path[-1]
            waiting = [callee for callee in dict.fromkeys(bodies[current]) if callee in bodies and callee not in sizes]
            if current in sizes or not waiting:
                sizes[path.pop()] = sum(sizes.get(callee, 1) for callee in bodies[current])
                continue
            if current in entered:
                raise InvalidModelError(
                    f"function {current[1]!r} of domain {current[0]!r} calls itself, directly or by others; "
                    "export the model again"
                )
            entered.add(current)
            path += waiting
    return sizes


def _told(count: int) -> str:
    return f"{count:,}" if count < 10**9 else "more than a billion"
