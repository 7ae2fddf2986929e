"""Exports models to other runtimes: LiteRT and ONNX."""

from kerasmem.extras.litert.verified import export

__all__ = ["export"]
