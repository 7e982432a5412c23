"""An external driver whose device takes ONNX; it computes nothing."""

from __future__ import annotations

from nnadapter.drivers import Capability, Context, Device, DeviceInfo, Driver, ModelForm, Reason, Unsupported


class OnnxFormContext(Context):
    def supported(self, model):
        return [Unsupported(Reason.UNSUPPORTED_OPERATION, "it computes nothing")] * len(model.graph.node)

    def compile(self, model):
        raise NotImplementedError


class OnnxFormDevice(Device):
    capability = Capability(form=ModelForm.ONNX)

    def create_context(self, options):
        return OnnxFormContext()


class OnnxFormDriver(Driver):
    def open(self, device_id):
        return OnnxFormDevice()

    def devices(self):
        return (DeviceInfo(name="onnxform", available=False, reason="it is opened by its name alone"),)
