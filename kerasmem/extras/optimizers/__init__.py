"""Optimizers that keep less: drop-in for Keras's, with a smaller state."""

from kerasmem.extras.optimizers.adafactor import Adafactor
from kerasmem.extras.optimizers.adam_8bit import Adam8bit

__all__ = ["Adafactor", "Adam8bit"]
