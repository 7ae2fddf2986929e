"""Training with activations in eight bits."""

from kerasmem.memory.compress_activations.apply import (
    compress_activations,
    is_compressed,
)
from kerasmem.memory.compress_activations.record import (
    ActivationReport,
    GradientChange,
    LayerBytes,
)
from kerasmem.memory.compress_activations.report import activation_report

__all__ = [
    "ActivationReport",
    "GradientChange",
    "LayerBytes",
    "activation_report",
    "compress_activations",
    "is_compressed",
]
