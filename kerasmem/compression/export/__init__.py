"""Models as files for other runtimes."""

from kerasmem.compression.export.export import SAMPLES, export

__all__ = ["SAMPLES", "export"]
