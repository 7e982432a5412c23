"""Where each node runs, as custom node data for Google's Model Explorer."""

from __future__ import annotations

import json

from nnadapter.reports.facts import ReportFacts
from nnadapter.reports.rendering.colors import colors

_NOWHERE = "#ffffff"
_TEXT = "#000000"


def to_model_explorer(report: ReportFacts) -> str:
    """Return JSON text: per node name the device, or `folded` or `unused`, with a color.

    It is the data of one graph, the model's own. Nodes are found by their names, which are the node ids of Model
    Explorer's ONNX adapter; a node that the model does not name is not found.

    Source: `GraphNodeData` of `model_explorer.node_data_builder`, `NodeDataProviderGraphData` of its user interface.
    """
    fill = colors(report.devices)
    results = {
        node.name: {
            "value": node.device or node.state,
            "bgColor": fill.get(node.device, _NOWHERE),
            "textColor": _TEXT,
        }
        for node in report.nodes
    }
    data = {"name": "device", "results": results, "showExpandedSummaryOnGroupNode": True}
    return json.dumps(data, indent=2)
