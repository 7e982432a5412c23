"""The facts of a report in every format; `renderers.py` is the table of them."""
