"""Self-contained HTML page of a compression or search."""

from kerasmem.report.compression.page import Page, render_page, write_page

__all__ = ["Page", "render_page", "write_page"]
