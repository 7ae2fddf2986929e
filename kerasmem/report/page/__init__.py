"""Shared parts of all HTML pages. Each page is one self-contained file.

Python prepares the text, the tables and the packed columns of numbers. The scripts draw
the charts in the browser. Without scripts, the text and the tables are complete. The
packages `run` and `compression` contain the content of specific pages.
"""
