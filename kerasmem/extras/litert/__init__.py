"""Models as files for other runtimes: LiteRT, ONNX."""

from kerasmem.extras.litert.verified import export

__all__ = ["export"]
