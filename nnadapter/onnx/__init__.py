"""ONNX models: files, messages, nodes, schemas, validity, shapes and constants.

Packages above this one read no protobuf messages, as `Prepared` holds all they need of a model.
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".body": "has_body",
        ".canonical": "joined joined_bytes separated",
        ".construction": "OnnxIndex build extract initializer_of parse",
        ".files": "BegunModel load_model save_model",
        ".graphs": (
            "check_calls check_calls_in has_open_inputs node_names read_graph read_nodes size_names value_of values_of"
        ),
        ".inlining": "expand_functions with_weights_outside",
        ".model": "OnnxNode contradiction_of read_model read_node",
        ".normal_form": "in_order stamp_down with_dense",
        ".parts": "Parts",
        ".propagation": "infer",
        ".references": "array_of bytes_of inlined is_reference read_ahead referring with_references",
        ".schemas": (
            "MICROSOFT Refusal bounds_of further_schema further_schemas is_further newest_since_version "
            "schema_defaults since_version"
        ),
        ".signature": "ModelMetadata Signature",
        ".wire_format": "BYTES NUMBER check_size fields mentions varint varint_bytes",
    },
)
