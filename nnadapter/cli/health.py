"""Whether a device works: a sum of four numbers, computed by it and looked at."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from nnadapter.drivers.capability import DeviceInfo
from nnadapter.errors import InvalidOptionError, NNAdapterError, NotDelegatedError, describe
from nnadapter.inference.session import InferenceSession
from nnadapter.onnx.building import parse
from nnadapter.options import Options

_MODEL = '<ir_version: 10, opset_import: ["" : 17]> health (float[4] x, float[4] y) => (float[4] z) { z = Add(x, y) }'
_OPTIONS = Options(fallback="forbid", cache_dir=False)
"""The device compiles by itself, and nobody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What came of trying a device."""

    state: str
    """`works`, `wrong` (it computed something else), `limited` (so it did, and says that it does), `failed`,
    `refuses` (a sum is not for it), `needs options` (there is nothing it does without) or `unavailable`."""
    detail: str = ""
    """What happened, and what to do about it; empty if it works."""
    first_seconds: float | None = None
    """From nothing to the first result: opening, compiling, computing."""
    run_seconds: float | None = None
    """Of the second run."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "state": self.state,
            "detail": self.detail,
            "first_seconds": self.first_seconds,
            "run_seconds": self.run_seconds,
        }


def check_health(device: DeviceInfo) -> Health:
    """Compile and run a sum of two vectors on `device`, without any help of the CPU."""
    if not device.available:
        return Health(state="unavailable", detail=device.reason)
    model = parse(_MODEL)
    feed = {"x": np.arange(4, dtype=np.float32), "y": np.full(4, 0.5, np.float32)}
    started = perf_counter()
    try:
        with (
            warnings.catch_warnings(),
            InferenceSession(model, devices=device.name, options=_OPTIONS) as session,
        ):
            warnings.simplefilter("ignore")
            (first,) = session.run(None, feed)
            between = perf_counter()
            session.run(None, feed)
            ended = perf_counter()
    except NotDelegatedError as error:
        return Health(state="refuses", detail=str(error))
    except InvalidOptionError as error:
        return Health(state="needs options", detail=str(error))
    except NNAdapterError as error:
        return Health(state="failed", detail=str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  a plug-in may try to end the process, too
        return Health(state="failed", detail=f"its driver raised {describe(error)}; ask its vendor")
    expected = feed["x"] + feed["y"]
    if not np.allclose(first, expected, rtol=1e-2):
        limits = _limits_of_sums(device)
        if limits:
            return Health(state="limited", detail=f"a sum is not computed, as the device says: {limits}")
        return Health(state="wrong", detail=f"got {first.tolist()}, expected {expected.tolist()}; ask its vendor")
    return Health(state="works", first_seconds=between - started, run_seconds=ended - between)


def _limits_of_sums(device: DeviceInfo) -> str:
    rows = () if device.capability is None else device.capability.operations
    return next((row.limits for row in rows if row.type == "ADD"), "")
