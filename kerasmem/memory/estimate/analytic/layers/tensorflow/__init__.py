"""What TensorFlow runs for a layer when the step is not compiled.

Read in the Keras backend, and in the allocations of real steps on a GPU: names of the
operations, sizes, lifetimes.
"""

from functools import partial

from kerasmem.memory.estimate.analytic.layers.common import (
    COMMON,
    dense,
    rows,
    taken_sparsely,
)
from kerasmem.memory.estimate.analytic.layers.names import (
    ACTIVATIONS,
    AVERAGE_POOLING,
    CONVOLUTIONS,
    DROPOUTS,
    MAX_POOLING,
    TRANSPOSED,
)
from kerasmem.memory.estimate.analytic.layers.recurrent import (
    IN_FLIGHT,
    LOOPS,
    RECURRENT,
    recurrent,
)
from kerasmem.memory.estimate.analytic.layers.tensorflow.activations import (
    activated,
    activation,
)
from kerasmem.memory.estimate.analytic.layers.tensorflow.attention import (
    attended,
    dropped,
    operated,
)
from kerasmem.memory.estimate.analytic.layers.tensorflow.convolution import (
    convolved,
    convolved_depthwise,
    convolved_separably,
    pooled_average,
    pooled_max,
)
from kerasmem.memory.estimate.analytic.layers.tensorflow.normalization import (
    normalized_batch,
    normalized_group,
    normalized_layer,
    normalized_rms,
)
from kerasmem.memory.estimate.analytic.site import Handler, Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Tensor


def _dense(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    return dense(t, s, xs, activated)


def _looked_up(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Embedding: the gradient is of the rows that were read (`IndexedSlices`)."""
    return rows(t, s, xs, sparse=True)


TENSORFLOW: dict[str, Handler] = {
    **COMMON,
    **RECURRENT,
    **dict.fromkeys(LOOPS, partial(recurrent, in_flight=IN_FLIGHT)),
    **dict.fromkeys(["Dense", "EinsumDense"], _dense),
    "Embedding": _looked_up,
    "Take": taken_sparsely,
    **dict.fromkeys(ACTIVATIONS, activation),
    "BatchNormalization": normalized_batch,
    "LayerNormalization": normalized_layer,
    "GroupNormalization": normalized_group,
    **dict.fromkeys(["RMSNormalization", "UnitNormalization"], normalized_rms),
    **dict.fromkeys([*CONVOLUTIONS, *TRANSPOSED], convolved),
    **dict.fromkeys(["DepthwiseConv1D", "DepthwiseConv2D"], convolved_depthwise),
    **dict.fromkeys(["SeparableConv1D", "SeparableConv2D"], convolved_separably),
    **dict.fromkeys(MAX_POOLING, pooled_max),
    **dict.fromkeys(AVERAGE_POOLING, pooled_average),
    **dict.fromkeys(DROPOUTS, dropped),
    **dict.fromkeys(["MultiHeadAttention", "GroupedQueryAttention"], attended),
    "DotProductAttention": operated,
}
