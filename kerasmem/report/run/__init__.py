"""What a watched run recorded, as one self-contained page that answers to a hand."""

from kerasmem.report.run.page import notebook_html, run_page_html, write_run_page

__all__ = ["notebook_html", "run_page_html", "write_run_page"]
