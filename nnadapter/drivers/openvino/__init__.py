"""openvino: Intel's processors, graphics and NPUs through the package `openvino`.

Read it in the order in which a model passes through it: driver, options, context, asking, operators with restrictions
(the reviewed tables), verdicts, loading, program, execution; engine.py is the border to the package.
"""

from nnadapter.drivers.openvino.driver import OpenvinoDriver

__all__ = ["OpenvinoDriver"]
