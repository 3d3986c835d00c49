"""Reports: one HTML file about one run or several, that needs no network; `egm report` on the command line."""

from egm.report.write import write_report

__all__ = ["write_report"]
