"""Weights that become zero."""

from kerasmem.compression.prune.config import Prune

__all__ = ["Prune"]
