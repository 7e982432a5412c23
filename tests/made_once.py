"""Slow set-up of other packages, cached.

The first process that needs onnx's operator tests generates them for all. Each process caches the operator lookup that
PyTorch's exporter otherwise repeats for each graph. Child processes import this first, so it imports little.
"""

import os
import sys
from functools import cache
from importlib.machinery import PathFinder

VARIABLE = "TESTS_OF_OPERATORS"
"""Environment variable with the file of cached operator tests, inherited by child processes."""


class Once:
    """Finder that wraps the functions named in `MADE_ONCE` when their modules are imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in MADE_ONCE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute, (function, once) = spec.loader.exec_module, MADE_ONCE[name]

        def exec_module(module):
            execute(module)
            if hasattr(module, function):  # onnx 1.20 lacks it
                setattr(module, function, once(getattr(module, function)))

        spec.loader.exec_module = exec_module
        return spec


def kept(make):
    """Return `make` with its result cached, in this process and in the file for others."""
    held = []

    def load():
        if not held:
            held.append(_read_or_made(make))
        return held[0]

    return load


def _read_or_made(make):
    import pickle
    import tempfile
    from pathlib import Path

    if VARIABLE not in os.environ:
        return make()
    file = Path(os.environ[VARIABLE])
    if file.exists():
        return pickle.loads(file.read_bytes())
    made = make()
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as beside:
        pickle.dump(made, beside)
    Path(beside.name).replace(file)  # atomic: other processes may read meanwhile
    return made


MADE_ONCE = {
    "onnx.backend.test.loader": ("load_node_model_tests", kept),
    "torch._export.utils": ("_materialize_cpp_cia_ops", cache),  # lists PyTorch's operators at that time
}
"""Module -> a function of it, and the decorator that caches the function."""


def make_once():
    """Install the caches of `MADE_ONCE` in this process."""
    sys.meta_path.insert(0, Once())
