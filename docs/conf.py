"""Configuration of the documentation site: `sphinx-build -W docs site`."""

from nnadapter import __version__

project = "nnadapter"
author = "the nnadapter developers"
version = release = __version__
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"nnadapter {__version__}"
exclude_patterns = ["notes/renames.toml", "*.py"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]
