"""A test driver for ONNX with dynamic shapes: ONNX Runtime computes, and options select failures."""

from __future__ import annotations

import onnxruntime

from nnadapter.drivers import (
    SUPPORTED,
    Admission,
    Capability,
    Context,
    Device,
    Driver,
    DynamicShapes,
    Execution,
    ModelForm,
    Option,
    Program,
    Reason,
    Unsupported,
)
from nnadapter.onnx import has_open_inputs

COMPILED: list[list[str]] = []
"""Op types of each compiled model, after `open` if its shapes were dynamic."""


class OpenSizesExecution(Execution):
    def __init__(self, model, fails_above):
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.fails_above = fails_above

    def compute(self, inputs):
        if any(max(array.shape, default=0) > self.fails_above for array in inputs):
            raise RuntimeError("too long")
        names = [each.name for each in self.session.get_inputs()]
        return self.session.run(None, dict(zip(names, inputs, strict=True)))


class OpenSizesProgram(Program):
    def __init__(self, model, options):
        self.model, self.options = model, options

    def create_execution(self):
        return OpenSizesExecution(self.model, self.options["fails_above"])


class OpenSizesContext(Context):
    def __init__(self, options):
        self.options = options

    def supported(self, model):
        why = Reason(self.options["reason"])
        refused, names = Unsupported(why, "the options say so"), {*self.options["refused"]}
        names.update(self.options["refused_open"] if has_open_inputs(model) else ())
        return [refused if node.op_type in names else SUPPORTED for node in model.graph.node]

    def admit(self, model):
        assert not any(each.external_data for each in model.graph.initializer), "it takes no references"
        op_types = {node.op_type for node in model.graph.node}
        fixed = self.options["fixed"] or op_types.intersection(self.options["refused_open"])
        if has_open_inputs(model) and fixed:
            return Admission(verdict=Unsupported(Reason.DYNAMIC_SHAPE, "the options say so"))
        return Admission()

    def compile(self, model):
        opened = has_open_inputs(model)
        if opened and self.options["lies"]:
            raise RuntimeError("not with these sizes")
        for node in model.graph.node:
            if node.op_type == self.options["replaced"]:
                node.op_type, node.domain = "Sin", ""
        COMPILED.append([*["open"] * opened, *(node.op_type for node in model.graph.node)])
        return OpenSizesProgram(model, self.options)


class OpenSizesDevice(Device):
    def __init__(self, dynamic_shapes):
        self.said = Capability(
            form=ModelForm.ONNX,
            dynamic_shapes=dynamic_shapes,
            options=(
                Option(name="refused", default=(), help="Op types to refuse."),
                Option(name="refused_open", default=(), help="Op types to refuse where sizes are open."),
                Option(name="reason", default="unsupported_operation", help="Why."),
                Option(name="replaced", default="", help="An op type that is computed as Sin."),
                Option(name="fixed", default=False, help="Admit no segment with open sizes."),
                Option(name="lies", default=False, help="Fail to compile what was admitted with open sizes."),
                Option(name="fails_above", default=1 << 30, help="Fail to run with a larger size than this."),
            ),
        )

    @property
    def capability(self):
        return self.said

    def create_context(self, options):
        return OpenSizesContext(options)


class OpenSizesDriver(Driver):
    def open(self, device_id):
        return OpenSizesDevice(DynamicShapes.NONE if device_id == "fixed" else DynamicShapes.ANY)
