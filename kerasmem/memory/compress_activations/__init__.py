"""Training with 8-bit activations."""

from kerasmem.memory.compress_activations.apply import compress_activations
from kerasmem.memory.compress_activations.report import (
    ActivationReport,
    GradientChange,
    LayerBytes,
    activation_report,
)

__all__ = [
    "ActivationReport",
    "GradientChange",
    "LayerBytes",
    "activation_report",
    "compress_activations",
]
