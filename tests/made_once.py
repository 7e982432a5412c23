"""What packages make again and again is made once.

onnx's own operator tests, whose making takes seconds, are made by the first process that needs them; what PyTorch's
exporter looks up for each graph, in 0.04 s, each process looks up once.

Processes that tests start run this as well, before anything else: it imports little.
"""

import os
import sys
from functools import cache
from importlib.machinery import PathFinder

VARIABLE = "TESTS_OF_OPERATORS"
"""Says in which file they are kept, to this process and to those that it starts."""


class Once:
    """Finds modules of `MADE_ONCE` as Python does, and has them make once what is named there."""

    def find_spec(self, name, path=None, target=None):
        """See `importlib.abc.MetaPathFinder`."""
        if name not in MADE_ONCE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute, (function, once) = spec.loader.exec_module, MADE_ONCE[name]

        def exec_module(module):
            execute(module)
            if hasattr(module, function):  # onnx 1.20 has no such function
                setattr(module, function, once(getattr(module, function)))

        spec.loader.exec_module = exec_module
        return spec


def kept(make):
    """What is made once: then it is here, and in the file for others."""
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
    Path(beside.name).replace(file)  # in one step: others may read meanwhile
    return made


MADE_ONCE = {
    "onnx.backend.test.loader": ("load_node_model_tests", kept),
    "torch._export.utils": ("_materialize_cpp_cia_ops", cache),  # asks PyTorch for operators that it has then
}
"""By module: a function, and what makes of it one that works once."""


def make_once():
    """Have this process make once what `MADE_ONCE` says, or read what others made, if a file is named then."""
    sys.meta_path.insert(0, Once())
