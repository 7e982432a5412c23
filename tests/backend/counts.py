"""A program that prints pass counts of onnx's official suite: `python -m tests.backend.counts`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.backend.suite import Alone, alone, official


def lines(outcomes: Mapping[str, Mapping[str, str]], cases: Sequence[Alone]) -> Iterator[str]:
    """Yield the counts as sentences."""
    for kind, results in outcomes.items():
        yield f"{kind}: {sum(not why for why in results.values())} of {len(results)} pass on [fake_npu, cpu]"
    admitted = sum(case.admitted for case in cases)
    whole = sum(case.whole for case in cases)
    differ = sum(bool(case.mismatch) for case in cases)
    yield (
        f"fake_npu alone: its limits admit {admitted} of {len(cases)} node tests; {whole} of these "
        f"({whole / admitted:.1%}) run wholly on it, {differ} with a mismatch"
    )


if __name__ == "__main__":
    print(*lines(official(), list(alone())), sep="\n")
