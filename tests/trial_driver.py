"""A test driver that is correct by default; options select faults."""

from __future__ import annotations

import ctypes

import numpy as np

from nnadapter.drivers import (
    SUPPORTED,
    Admission,
    Capability,
    Context,
    Device,
    Driver,
    Execution,
    ModelForm,
    Option,
    Program,
    Reason,
    Threading,
    Unsupported,
)
from nnadapter.errors import CancelledError, CompilationError, InvalidInputError
from nnadapter.ir.definition import by_definition

FAULTS = (
    "none",
    "open",
    "context",
    "supported",
    "supported_short",
    "supported_type",
    "supported_fields",
    "supported_unprintable",
    "admit",
    "admit_fields",
    "compile",
    "compile_unprintable",
    "compile_blames",
    "execution",
    "compute",
    "count",
    "shape",
    "dtype",
    "compute_invalid",
    "compute_cancelled",
    "compute_unprintable",
    "compute_left",
    "admit_none",
    "compile_none",
    "memory",
    "close",
    "serialize",
    "deserialize",
    "step",
    "split",
)
"""`step`: integers are one too large. `split`: SPLIT is wrong, and models of several outputs are not compiled."""
ENDS = ("nowhere", "create_context", "supported", "admit", "compile", "compute")
COUNTS: dict[str, int] = {}
HANDED: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
"""Inputs and outputs of executions with the option `recorded`, in order."""


SCRIPT: list[BaseException | None] = []
"""Exceptions that the next computations raise, in turn; None for success."""
COMPILES: list[BaseException | None] = []
"""Exceptions that the next compilations raise, in turn; None for success."""
SPOILS: list[bool] = []
"""If not empty, a failing computation first overwrites its inputs, as C code may."""


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def leave(options, where):
    """End the process if the options name this point."""
    if options["ends"] == where:
        raise SystemExit(3)


class TrialExecution(Execution):
    def __init__(self, model, options):
        self.model, self.options, self.fault, self.runs = model, options, options["fault"], 0
        if self.fault == "execution":
            raise MemoryError("no buffers")

    def compute(self, inputs):
        leave(self.options, "compute")
        assert all(not array.flags.writeable and array.flags.c_contiguous for array in inputs)
        COUNTS["compute"] = COUNTS.get("compute", 0) + 1
        self.runs += 1
        error = SCRIPT.pop(0) if SCRIPT else None
        if error is not None:
            for array in inputs if SPOILS else ():
                ctypes.memset(array.ctypes.data, 0xFF, array.nbytes)
            raise error
        if self.fault == "compute" or self.runs == self.options["last_run"] + 1 > 1:
            raise RuntimeError("the device hung up")
        results = self.computed(inputs)
        if self.options["recorded"]:
            HANDED.append((list(inputs), list(results)))
        return results

    def computed(self, inputs):
        if self.fault == "compute_invalid":
            raise InvalidInputError("not my kind of input")
        if self.fault == "compute_cancelled":
            raise CancelledError("I had enough")
        if self.fault == "compute_unprintable":
            raise UnprintableError
        if self.fault == "compute_left":
            raise GeneratorExit
        results = by_definition(self.model, inputs)
        if self.fault == "count":
            return results[:-1]
        if self.fault == "shape":
            return [result.reshape(-1) for result in results]
        if self.fault == "dtype":
            return [result.astype(np.float64) for result in results]
        if self.fault == "step":
            return [result + 1 if result.dtype.kind in "iu" else result for result in results]
        if self.fault == "split" and "SPLIT" in [operation.type for operation in self.model.operations]:
            return [result + 1 for result in results]
        return results


class TrialProgram(Program):
    def __init__(self, model, options):
        self.model, self.options, self.fault = model, options, options["fault"]

    @property
    def memory_bytes(self):
        return "plenty" if self.fault == "memory" else 1000

    def create_execution(self):
        COUNTS["execution"] = COUNTS.get("execution", 0) + 1
        return TrialExecution(self.model, self.options)

    def serialize(self):
        if self.fault == "serialize":
            raise OSError("no such file")
        return b"trial" if self.fault == "deserialize" else None

    def close(self):
        COUNTS["closed"] = COUNTS.get("closed", 0) + 1
        if self.fault == "close":
            raise OSError("bus error")


class TrialContext(Context):
    def __init__(self, options):
        self.options = options
        if options["fault"] == "context":
            raise OSError("no such bus")

    def supported(self, model):
        leave(self.options, "supported")
        if self.options["fault"] == "supported":
            raise KeyError("CONV_2D")
        if self.options["fault"] == "supported_short":
            return [SUPPORTED]
        if self.options["fault"] == "supported_type":
            return [True] * len(model.operations)
        if self.options["fault"] == "supported_fields":
            return [Unsupported("nonsense", None)] * len(model.operations)
        if self.options["fault"] == "supported_unprintable":
            raise UnprintableError
        return [self.verdict(model, operation) for operation in model.operations]

    def verdict(self, model, operation):
        only, largest = self.options["only"], self.options["largest"]
        if only and operation.type not in only:
            return Unsupported(Reason.UNSUPPORTED_OPERATION, f"{operation.type} is not one of {', '.join(only)}")
        sizes = [int(np.prod(model.type_of(output).dimensions)) for output in operation.outputs]
        if largest and max(sizes) > largest:
            return Unsupported(Reason.DEVICE_REFUSED, f"{max(sizes)} elements, room for {largest}")
        return SUPPORTED

    def admit(self, model):
        leave(self.options, "admit")
        COUNTS["admit"] = COUNTS.get("admit", 0) + 1
        if self.options["fault"] == "admit":
            raise ValueError("confused")
        if self.options["fault"] == "admit_fields":
            return Admission(verdict=Unsupported("nonsense", None))
        if self.options["fault"] == "admit_none":
            return None
        if self.shuns(model):
            COUNTS["shunned"] = COUNTS.get("shunned", 0) + 1
            return Admission(verdict=Unsupported(Reason.DEVICE_REFUSED, "a constant begins with the number of rows"))
        limit = self.options["max_operations"]
        if limit and len(model.operations) > limit:
            detail = f"{len(model.operations)} operations, room for {limit}"
            return Admission(verdict=Unsupported(Reason.MEMORY_LIMIT, detail))
        return Admission(facts={"operations": len(model.operations)})

    def shuns(self, model):
        rows = model.type_at(model.inputs[0]).dimensions[:1] if self.options["shuns_rows"] else ()
        values = [operand.value for operand in model.operands if rows and operand.value is not None]
        return any(value.size and value.flat[0] == rows[0] for value in values)

    def compile(self, model):
        leave(self.options, "compile")
        COUNTS["compile"] = COUNTS.get("compile", 0) + 1
        if self.shuns(model):
            COUNTS["forced"] = COUNTS.get("forced", 0) + 1
        error = COMPILES.pop(0) if COMPILES else None
        if error is not None:
            raise error
        if self.options["fault"] == "compile_none":
            return None
        if self.options["fault"] == "split" and len(model.outputs) > 1:
            raise RuntimeError("one output at a time")
        if self.options["fault"] == "compile_unprintable":
            raise UnprintableError
        if self.options["fault"] == "compile_blames":
            no = Unsupported(Reason.DEVICE_REFUSED, "no")
            raise CompilationError("no", refused={999: no, -1: no, "a": no, 1.5: no, 0: "no", 1: Unsupported("no", 5)})
        types = [op.type for op in model.operations]
        room, beside = self.options["room"], set(self.options["beside"])
        if room and len(types) > room:
            raise RuntimeError("no room for so many")
        if beside and beside <= set(types):
            raise RuntimeError("not beside each other")
        culprit = self.options["fails_on"]
        if self.options["fault"] == "compile" or (culprit and any(op.type == culprit for op in model.operations)):
            raise RuntimeError("internal compiler error 7")
        return TrialProgram(model, self.options)

    def clone_with_constants(self, program, model):
        if not self.options["binds"]:
            return None
        COUNTS["bind"] = COUNTS.get("bind", 0) + 1
        if self.shuns(model):
            COUNTS["forced"] = COUNTS.get("forced", 0) + 1
        return TrialProgram(model, self.options)

    def deserialize(self, blob):
        raise OSError("no such format")

    def close(self):
        COUNTS["context_closed"] = COUNTS.get("context_closed", 0) + 1


class TrialDevice(Device):
    @property
    def has_raw_inputs(self):
        return bool(SPOILS)

    @property
    def capability(self):
        return Capability(
            form=ModelForm.IR,
            threading=Threading.EXCLUSIVE,
            options=(
                Option(name="fault", default="none", help="Where to fail.", choices=FAULTS),
                Option(name="only", default=(), help="Operations to take; all if empty."),
                Option(name="largest", default=0, help="Most elements of a result; any number if 0.", minimum=0),
                Option(name="fails_on", default="", help="An operation that compile fails on."),
                Option(name="room", default=0, help="Operations from which on compile fails.", minimum=0),
                Option(name="beside", default=(), help="Operations that it does not compile beside each other."),
                Option(name="max_operations", default=0, help="Room.", minimum=0),
                Option(name="ends", default="nowhere", help="Where to end the process.", choices=ENDS),
                Option(name="last_run", default=0, help="The run after which it fails; never if 0.", minimum=0),
                Option(name="binds", default=False, help="Bind what is like something that was compiled."),
                Option(
                    name="shuns_rows", default=False, help="Refuse a segment with a constant that begins with its rows."
                ),
                Option(name="recorded", default=False, help="Keep what is handed over."),
            ),
        )

    def create_context(self, options):
        leave(options, "create_context")
        return TrialContext(options)


class TrialDriver(Driver):
    def open(self, device_id):
        if device_id == "9":
            raise OSError("slot 9 is empty")
        return TrialDevice()


class OldDriver(TrialDriver):
    interface_version = (0, 9)


class AbstractDriver(Driver):
    pass


class NotADriver:
    pass
