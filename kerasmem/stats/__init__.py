"""Figures of figures: which of them count, and how far they spread."""
