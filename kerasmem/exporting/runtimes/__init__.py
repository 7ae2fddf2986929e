"""A model in several forms, measured side by side: which to use where."""

from kerasmem.exporting.runtimes.compare import compare_runtimes

__all__ = ["compare_runtimes"]
