"""Self-contained, interactive HTML page of a monitored run."""

from kerasmem.report.run.page import notebook_html, run_page_html, write_run_page

__all__ = ["notebook_html", "run_page_html", "write_run_page"]
