"""All layers that compute with int8 codes."""

from kerasmem.compression.quantize.static.affine import IntegerAffine
from kerasmem.compression.quantize.static.base import IntegerLayer
from kerasmem.compression.quantize.static.boundary import FromCodes, ToCodes
from kerasmem.compression.quantize.static.convolution import (
    IntegerConv1D,
    IntegerConv2D,
    IntegerDepthwiseConv1D,
    IntegerDepthwiseConv2D,
)
from kerasmem.compression.quantize.static.dense import IntegerDense
from kerasmem.compression.quantize.static.elementwise import (
    IntegerAdd,
    IntegerLeakyReLU,
    IntegerMultiply,
    IntegerReLU,
)
from kerasmem.compression.quantize.static.hard_silu import IntegerHardSilu
from kerasmem.compression.quantize.static.padding import IntegerPadding
from kerasmem.compression.quantize.static.pooling import (
    IntegerAveragePooling,
    IntegerMaxPooling,
    IntegerMean,
)
from kerasmem.compression.quantize.static.table import IntegerTable

__all__ = [
    "FromCodes",
    "IntegerAdd",
    "IntegerAffine",
    "IntegerAveragePooling",
    "IntegerConv1D",
    "IntegerConv2D",
    "IntegerDense",
    "IntegerDepthwiseConv1D",
    "IntegerDepthwiseConv2D",
    "IntegerHardSilu",
    "IntegerLayer",
    "IntegerLeakyReLU",
    "IntegerMaxPooling",
    "IntegerMean",
    "IntegerMultiply",
    "IntegerPadding",
    "IntegerReLU",
    "IntegerTable",
    "ToCodes",
]
