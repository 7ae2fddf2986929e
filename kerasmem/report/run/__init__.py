"""What a watched run recorded, as one self-contained page that answers to a hand.

Python prepares the words, the tables and the numbers by column; the scripts beside it
draw the charts in the browser. Without scripts the words and the tables are all there.
"""

from kerasmem.report.run.page import notebook_html, run_page_html, write_run_page

__all__ = ["notebook_html", "run_page_html", "write_run_page"]
