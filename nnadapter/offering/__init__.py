"""What is offered to devices: the model's nodes as atoms, converted, in the form that suits a device.

atoms        nodes that stand for one thing
conversions  the graph at its shapes, converted once for many shapes where that can be
offers       what a device refused as one, offered node by node
expansions   function ops that no device takes whole, in the ops of their bodies
segments     a segment as the model that its device takes
"""
