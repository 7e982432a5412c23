"""All that is known of ONNX: files, messages, nodes, attributes, schemas, versions, validity, shapes, constants.

Nothing above this room has to read a message: what it needs of a model stands in `Prepared`.

files, versions, equations     a model's file, and what is refused because nobody can say what it means
model, graphs, node            a model read once: its nodes, as the partitioner and as converters see them
schemas, node_schema           what the installed onnx knows of operators
functions, branches, ordering  nodes that stand for others, written down
inference, propagation         types and shapes, as onnx infers them
true_shapes, values            where ONNX Runtime computes others; types in the form of the partitioner
preparation                    constants folded, a model at one set of input shapes
building, extracting, parts    models put together, and parts of a model as models of their own
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
