"""Models as files for other runtimes: LiteRT, ONNX."""

from kerasmem.exporting.verified import export

__all__ = ["export"]
