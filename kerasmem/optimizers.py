"""Optimizers with a smaller state than Keras optimizers."""

from kerasmem.extras.optimizers import Adafactor, Adam8bit

__all__ = ["Adafactor", "Adam8bit"]
