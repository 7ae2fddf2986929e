"""Models that Keras 2 (tf_keras, tf.keras, tfmot) wrote, as models of Keras 3."""

from kerasmem.files.legacy.comparison import compare
from kerasmem.files.legacy.made import Made
from kerasmem.files.legacy.read import is_legacy, load_legacy
from kerasmem.files.legacy.training import compile_arguments

__all__ = ["Made", "compare", "compile_arguments", "is_legacy", "load_legacy"]
