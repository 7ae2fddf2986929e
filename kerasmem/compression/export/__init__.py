"""Models as files for other runtimes."""

from kerasmem.compression.export.export import export

__all__ = ["export"]
