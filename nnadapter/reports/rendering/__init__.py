"""The facts of a report in every format; `reports/report.py` is the table of them."""
