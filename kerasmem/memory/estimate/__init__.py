"""Estimates the memory of a model before training."""

from kerasmem.memory.estimate.estimate import METHODS, estimate_memory
from kerasmem.memory.estimate.request import Input, Request

__all__ = ["METHODS", "Input", "Request", "estimate_memory"]
