"""The meaning of the operation that stands for a node of any ONNX op."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import Example, OperationDoc, counting

MEANINGS: Mapping[str, OperationDoc] = {
    "CUSTOM": OperationDoc(
        summary="One node of any ONNX op, computed by a custom kernel that a person registered.",
        formula="outputs = kernel(domain, op_type, since_version)(inputs, attributes)",
        inputs={"inputs": "The inputs of the node that are there, in their order."},
        attributes={
            "domain": "Of the ONNX op; empty for ONNX's own.",
            "op_type": "Name of the ONNX op.",
            "since_version": "Of the op's schema; for an op without one, of the domain's opset.",
            "attributes": "The node's attributes as a JSON object; a tensor is {tensor: [data type, dimensions,"
            " base64 of the bytes]}.",
            "present": "For every input of the operation, which input of the node it is; ascending. Those that do not"
            " occur are absent.",
            "output_types": "Types of the results, such as `float32[1, 3]; int64[]`.",
        },
        outputs={"outputs": "As many as `output_types` says, of those types."},
        example=Example(
            (counting(2),),
            {"domain": "com.example", "op_type": "Twice", "present": (0,), "output_types": "float32[2]"},
        ),
        traps=(
            "It has no definition in numpy: what it means is for the kernel to say.",
            "A driver never sees it: the host calls the kernel between the parts that the driver is given.",
            "`CustomCall.of(attributes)` in nnadapter.ir.operations.custom reads the attributes.",
        ),
        flops="1 for each element of the outputs: nobody knows what a kernel does",
    ),
}
"""By operation."""
