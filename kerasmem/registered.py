"""Every class that Keras finds by its name in a saved model."""

from kerasmem import layers, optimizers
from kerasmem.compression.factorize import inside
from kerasmem.compression.quantize import layer
from kerasmem.compression.quantize.aware import quantizers
from kerasmem.compression.quantize.static import calls, elementwise, products
from kerasmem.files import coded_model, keras_2

__all__ = [
    "calls",
    "coded_model",
    "elementwise",
    "inside",
    "keras_2",
    "layer",
    "layers",
    "optimizers",
    "products",
    "quantizers",
]
