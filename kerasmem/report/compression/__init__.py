"""What a compression changed and a search has tried, as one self-contained page."""

from kerasmem.report.compression.page import Page, render_page, write_page

__all__ = ["Page", "render_page", "write_page"]
