"""The report on grids and runs: tables, tests between models, figures, one HTML page."""

from toolkit.experiments.report.program import write_report

__all__ = ["write_report"]
