"""Frozen data that the rest of kerasmem passes around and reports read."""

from kerasmem.records.change import WeightChange
from kerasmem.records.figures import CompressionReport, ModelFigures
from kerasmem.records.gradient import GradientRecord, VariableGradient
from kerasmem.records.memory import DeviceReading, HostReading, MemoryRecord

__all__ = [
    "CompressionReport",
    "DeviceReading",
    "GradientRecord",
    "HostReading",
    "MemoryRecord",
    "ModelFigures",
    "VariableGradient",
    "WeightChange",
]
