"""Weights that become zero."""

from kerasmem.compression.prune.config import Prune
from kerasmem.compression.prune.schedules import (
    Constant,
    Cosine,
    Iterative,
    Polynomial,
    RigL,
    Schedule,
    Splicing,
)

__all__ = [
    "Constant",
    "Cosine",
    "Iterative",
    "Polynomial",
    "Prune",
    "RigL",
    "Schedule",
    "Splicing",
]
