"""The package examples/drivers/acme_python as pip installs it, without pip."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nnadapter.drivers import registry

DRIVER = Path(__file__).parents[2] / "examples" / "drivers" / "acme_python"


def acme_python_site(folder, patch):
    """Put the package and its entry point on the path, for child processes too."""
    info = folder / "acme_python-1.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-python\nVersion: 1.0.0\n")
    points = (DRIVER / "pyproject.toml").read_text().split('[project.entry-points."nnadapter.drivers"]\n')[1]
    (info / "entry_points.txt").write_text(f"[nnadapter.drivers]\n{points.splitlines()[0].replace(chr(34), '')}\n")
    patch.setattr(sys, "path", [str(folder), str(DRIVER), *sys.path])
    patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    registry.refresh()
