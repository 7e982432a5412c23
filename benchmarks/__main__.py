"""Command line: `python -m benchmarks` lists the benchmarks, `python -m benchmarks NAME [options]` runs one."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.harness import run_benchmark
from benchmarks.index import BENCHMARKS

_USAGE = """usage: python -m benchmarks                      list the benchmarks
       python -m benchmarks NAME --help          show what it measures, and its options
       python -m benchmarks NAME [options]       run it
       python -m benchmarks NAME --quick         run the smallest form, to see whether it works
       python -m benchmarks NAME --json [FILE]   write JSON to a file, or to standard output
"""


def main(arguments: Sequence[str]) -> int:
    """List or run, and return the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE)
        width = max(map(len, BENCHMARKS))
        for name, benchmark in BENCHMARKS.items():
            print(f"{name:{width}}  {benchmark.question} ({benchmark.duration})")
        return 0
    name, *options = arguments
    if name not in BENCHMARKS:
        print(f"there is no benchmark {name!r}; python -m benchmarks lists them", file=sys.stderr)
        return 2
    if "--quick" in options:
        options = [*BENCHMARKS[name].quick, *(option for option in options if option != "--quick")]
    return run_benchmark(name, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
