"""onnx's own operator tests, whose making takes seconds, are made by the first process that needs them.

Processes that tests start run this as well, before anything else: it imports little.
"""

import os
import sys
from importlib.machinery import PathFinder

VARIABLE = "TESTS_OF_OPERATORS"
"""Says in which file they are kept, to this process and to those that it starts."""


class Once:
    """Finds onnx's loader of tests as Python does, and has it read in that file what is there."""

    def find_spec(self, name, path=None, target=None):
        """See `importlib.abc.MetaPathFinder`."""
        if name != "onnx.backend.test.loader":
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.load_node_model_tests = kept(module.load_node_model_tests)

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


def make_once():
    """Have this process read what others made, if a file is named when it needs it."""
    sys.meta_path.insert(0, Once())
