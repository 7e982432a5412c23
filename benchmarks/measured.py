"""Policy `measured` beside ONNX Runtime alone and beside everything that the devices take.

    python benchmarks/measured.py MODEL... [--devices fake_npu] [--sets 5] [--rounds 9] [--turn 0.01] [--threads 0]
        [--json FILE]

How fast a session is hangs on where its memory came to lie: two of ONNX Runtime's, made alike, of a model that runs for
half a millisecond differ by 10 %. So there are several sets of sessions, made, timed and closed one set after the
other. A set is one session of each kind: ONNX Runtime's own; `control`, a second one made in the same way; everything
supported; and measured. Who is made first changes from set to set. Every measured session measures anew: nothing is
remembered from an earlier one, and a wrong choice would count.

Within a set all take turns with the same random feed, in another order each round. A turn is a pause, in which
threads of the one before stop looking for work, one run that does not count, and then runs for `--turn` seconds. The
median of a turn's runs is the turn's time, the median over rounds is the session's, the median over sets is the kind's.

- `control`: the control's time over that of ONNX Runtime's own; what it is away from 1 is noise.
- `over the better`: measured's time over that of ONNX Runtime's own or everything supported, whichever is less. 1.05 is
  what noise may add.
- `of each set`: the least and the greatest of that quotient of single sets; so for the control.

`--threads` are those of every session of ONNX Runtime, ours and the plain ones; 0 is as many as ONNX Runtime takes.
Where another program keeps a processor busy, only 1 tells anything: of two threads that wait for each other one is sent
to sleep for a tick of the system's scheduler, some 4 ms, in every run of one session and in none of the next.

Nothing is dropped: neither models, nor sets, nor slow runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.timing import interleaved, table
from nnadapter.offering.feeds import random_feed

_PAUSE = 0.02
_KINDS = ("cpu", "control", "supported", "measured")

_POLICIES = {"supported": "priority", "measured": "measured"}


@dataclass(frozen=True)
class Setting:
    """What all sessions of a model have in common."""

    model: str
    devices: list[str]
    threads: int
    feed: Mapping[str, Any]

    def session(self, kind: str, opened: ExitStack) -> Any:
        """Return a session of one kind that has run once; ours are closed with `opened`."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session: Any
        if kind in _POLICIES:
            ours = nna.Options(policy=_POLICIES[kind], cache_dir=False)
            session = opened.enter_context(
                nna.InferenceSession(self.model, options, devices=self.devices, options=ours)
            )
        else:
            session = onnxruntime.InferenceSession(self.model, options, providers=["CPUExecutionProvider"])
        session.run(None, self.feed)
        return session


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--devices", default="fake_npu")
    parser.add_argument("--sets", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turn", type=float, default=0.01)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", nna.errors.FallbackWarning)
    rows = []
    for model in arguments.models:
        setting = Setting(model, arguments.devices.split(","), arguments.threads, random_feed(model))
        timed = partial(interleaved, rounds=arguments.rounds, pause=_PAUSE, turn=arguments.turn)
        rows.append(measure(setting, arguments.sets, timed))
        print(" ".join(_cells(rows[-1])), file=sys.stderr, flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=2))
    head = ["model", "chosen", "all on cpu ms", "control", "everything supported ms", "measured ms"]
    print(table([*head, "over the better", "of each set"], [_cells(row) for row in rows]))


def measure(
    setting: Setting, sets: int, timed: Callable[[Mapping[str, Callable[[], object]]], dict[str, float]]
) -> dict[str, Any]:
    """Return what one model's sessions took, in seconds, and the quotients."""
    found, chosen = [], Counter[str]()
    for number in range(sets):
        with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
            os.environ["NNADAPTER_CACHE_DIR"] = folder
            order = _KINDS[number % len(_KINDS) :] + _KINDS[: number % len(_KINDS)]
            sessions = {kind: setting.session(kind, opened) for kind in order}
            cost = sessions["measured"].report().cost
            chosen[cost.candidates[0].name] += 1
            found.append(timed({kind: partial(sessions[kind].run, None, setting.feed) for kind in _KINDS}))
    middle = {kind: median(each[kind] for each in found) for kind in _KINDS}
    return {
        "model": Path(setting.model).name,
        "chosen": dict(chosen),
        **middle,
        "sets": found,
        "control ratio": middle["control"] / middle["cpu"],
        "ratio": _over_the_better(middle),
    }


def _over_the_better(seconds: Mapping[str, float]) -> float:
    return seconds["measured"] / min(seconds["cpu"], seconds["supported"])


def _cells(row: dict[str, Any]) -> list[str]:
    each = sorted(map(_over_the_better, row["sets"]))
    control = sorted(one["control"] / one["cpu"] for one in row["sets"])
    chosen = ", ".join(f"{name} ({times})" if len(row["chosen"]) > 1 else name for name, times in row["chosen"].items())
    return [
        row["model"],
        chosen,
        f"{row['cpu'] * 1e3:.2f}",
        f"{row['control ratio']:.3f} ({control[0]:.2f} to {control[-1]:.2f})",
        f"{row['supported'] * 1e3:.2f}",
        f"{row['measured'] * 1e3:.2f}",
        f"{row['ratio']:.3f}",
        f"{each[0]:.2f} to {each[-1]:.2f}",
    ]


if __name__ == "__main__":
    main()
