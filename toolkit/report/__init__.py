"""The report on grids and runs: tables, tests between models, figures, one HTML page."""

from toolkit.report.program import write_report

__all__ = ["write_report"]
