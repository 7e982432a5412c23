from __future__ import annotations

import onnx

from nnadapter.drivers.execution_providers import PROVIDER, Backing, EpContext, QnnDevice, QnnDriver, installed


class FailingBacking(Backing):
    """Backing that accepts the graph and fails to compile a program with Sin."""

    def open(self, model, level=None, profile=None, without=()):
        ops = [node.op_type for node in onnx.load_from_string(model.contents).graph.node]
        if "Sin" in ops and (level is None or len(ops) < 4):
            raise RuntimeError("no memory for Sin")
        return super().open(model, level, profile, without)


class FailingDevice(QnnDevice):
    def create_context(self, options):
        return EpContext(FailingBacking(**vars(super().create_context(options)._backing)))


class FailingQnnDriver(QnnDriver):
    def open(self, device_id):
        return FailingDevice(installed()[PROVIDER])
