"""`JobReport`: the facts of a job, with their renderings as methods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nnadapter.files.replacing import write_file
from nnadapter.ray.facts import SCHEMA_VERSION, JobFacts
from nnadapter.ray.page import to_page
from nnadapter.ray.text import to_text
from nnadapter.reports.plain import plain, to_lines


class JobReport(JobFacts):
    """What became of the rows of a job: how many, where, by which plans, and what went wrong."""

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {"schema_version": SCHEMA_VERSION, **plain(self)}

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return to_lines(self.to_dict())

    def to_html(self) -> str:
        """The report as one HTML page that needs no network and no other file."""
        return to_page(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file: a page where it ends in `.html`, JSON where it ends in `.json`, else text."""
        target = Path(path)
        text = {".html": self.to_html, ".json": self.to_json}.get(target.suffix, self.__str__)()
        write_file(target, lambda file: file.write(text.encode()))

    def __str__(self) -> str:
        """The report as text."""
        return to_text(self)
