"""Models that Keras 2 (tf_keras, tf.keras, tfmot) wrote, as models of Keras 3."""

from kerasmem.extras.legacy.comparison import compare
from kerasmem.extras.legacy.read import load_converted, load_legacy

__all__ = ["compare", "load_converted", "load_legacy"]
