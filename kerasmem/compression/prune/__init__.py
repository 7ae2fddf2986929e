"""Weights that become zero."""

from kerasmem.compression.prune.analysis import Sensitivity, sensitivity
from kerasmem.compression.prune.config import Prune
from kerasmem.compression.prune.regrowth import RigL, Splicing
from kerasmem.compression.prune.schedules import (
    Constant,
    Cosine,
    Iterative,
    Polynomial,
    Schedule,
)

__all__ = [
    "Constant",
    "Cosine",
    "Iterative",
    "Polynomial",
    "Prune",
    "RigL",
    "Schedule",
    "Sensitivity",
    "Splicing",
    "sensitivity",
]
