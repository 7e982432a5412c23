"""All that is known of ONNX: files, messages, nodes, attributes, schemas, versions, validity, shapes, constants.

Nothing above this room has to read a message: what it needs of a model stands in `Prepared`.

files, versions, equations     a model read, and refused where nobody can say what it means
graphs, node, attributes       its nodes, as the partitioner and as converters see them
schemas, node_schema           what the installed onnx knows of operators
functions, branches, ordering  nodes that stand for others, written down
inference, values              types and shapes
preparation                    constants folded, a model at one set of input shapes
extracting                     a part as a model of its own
"""
