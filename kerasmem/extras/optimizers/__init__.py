"""Drop-in optimizers with a smaller state than Keras's."""

from kerasmem.extras.optimizers.adafactor import Adafactor
from kerasmem.extras.optimizers.adam_8bit import Adam8bit

__all__ = ["Adafactor", "Adam8bit"]
