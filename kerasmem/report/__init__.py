"""Presentation of results: tables, progress displays, charts and HTML pages."""
