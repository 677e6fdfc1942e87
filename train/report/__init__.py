"""The self-contained HTML report of a run."""

from train.report.build import write_report

__all__ = ["write_report"]
