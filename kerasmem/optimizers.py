"""Optimizers with a smaller state, in place of those of Keras."""

from kerasmem.extras.optimizers import Adafactor, Adam8bit

__all__ = ["Adafactor", "Adam8bit"]
