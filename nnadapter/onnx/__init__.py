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
