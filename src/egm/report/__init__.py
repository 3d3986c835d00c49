"""Reports: one self-contained HTML file about one run or several; `egm report` on the command line."""

from egm.report.write import write_report

__all__ = ["write_report"]
