"""Pages that show runs, for `gloader report`: charts and tables in one HTML file that needs no network."""

from gloader.lab.report.build_page import make_report

__all__ = ["make_report"]
