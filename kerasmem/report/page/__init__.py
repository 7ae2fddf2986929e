"""One self-contained HTML page: what every page of kerasmem is made of.

Python prepares the words, the tables and the numbers by column; the scripts beside it
draw the charts in the browser. Without scripts the words and the tables are all there.
A room beside this one has a page's own content: `run`, `compression`.
"""
