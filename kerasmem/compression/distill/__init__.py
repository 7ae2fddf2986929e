"""Distillation: a small model learns from a large one."""

from kerasmem.compression.distill.config import Distill
from kerasmem.compression.distill.distill import distill
from kerasmem.compression.distill.distiller import Distiller

__all__ = ["Distill", "Distiller", "distill"]
