"""`PartitionReport`: the facts of a plan, with their renderings as methods."""

from __future__ import annotations

from nnadapter.reports.difference_facts import DifferenceFacts
from nnadapter.reports.facts import ReportFacts
from nnadapter.reports.rendering.renderers import FORMATS


class PartitionReport(ReportFacts):
    """What runs where and why."""

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return FORMATS["json"].render(self, "", None)

    def to_markdown(self) -> str:
        """The report as Markdown fit for a comment: a short summary, details folded."""
        return FORMATS["md"].render(self, "", None)

    def to_html(self, title: str = "", difference: DifferenceFacts | None = None) -> str:
        """The report as one HTML page that needs no network and no other file.

        Args:
            title: what the page is about, such as the model's file name.
            difference: what `compare_reports` found against an older report; the page shows both.
        """
        return FORMATS["html"].render(self, title, difference)

    def to_dot(self) -> str:
        """The segments and the tensors between them as a graph for Graphviz."""
        return FORMATS["dot"].render(self, "", None)

    def to_model_explorer(self) -> str:
        """The devices of nodes as JSON text: custom node data for Google's Model Explorer."""
        return FORMATS["model-explorer"].render(self, "", None)

    def __str__(self) -> str:
        """The report as text."""
        return FORMATS["text"].render(self, "", None)
