"""Custom kernels: registered per device and ONNX op, called between a driver's programs."""

from __future__ import annotations

from nnadapter.drivers import Capability, Context
from nnadapter.drivers.kernel import registered_kernels
from nnadapter.process.lazily import lazily


def calling_kernels(device: str, capability: Capability, context: Context) -> Context:
    """Wrap a context with the kernels of its device, if there are any."""
    if type(context).kernels is Context.kernels and not registered_kernels():
        return context
    from nnadapter.kernels.context import with_kernels  # loads converters and schemas, so only if needed

    return with_kernels(device, capability, context)[0]


__getattr__ = lazily(
    __name__,
    {
        ".registry": "KernelTable Request kernel_table",
        ".segments": "ir_segment split without_calls",
    },
)
