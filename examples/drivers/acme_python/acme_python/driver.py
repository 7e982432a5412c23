"""Driver: a table of operations and the kernels that compute them."""

import numpy as np

from acme_python.kernels import convolution
from nnadapter.drivers import DeviceInfo, TableDriver, lowers

ELEMENTWISE = {"ADD": np.add, "MUL": np.multiply, "RELU": lambda x: np.maximum(x, 0), "SUB": np.subtract}


class AcmeDriver(TableDriver):
    """Driver class that the entry point names."""

    info = DeviceInfo(name="acme_python", vendor="Acme", sub_type="A1", version="1.0.0")
    limits = "float32, images as NCHW, nothing quantized"

    @lowers(*ELEMENTWISE)
    def elementwise(self, operation):
        return ELEMENTWISE[operation.type]

    @lowers("FULLY_CONNECTED")
    def fully_connected(self, operation):
        if operation.bias is None:
            return lambda rows, weight, bias: rows @ weight.T
        return lambda rows, weight, bias: rows @ weight.T + bias

    @lowers("CONV_2D")
    def convolution(self, operation):
        return convolution(operation)
