"""What torch runs for a layer when the step is not compiled.

Read in the Keras backend and in torch's rules of differentiation: nothing is written
over its input unless the code says so, and views cost nothing.
"""

from kerasmem.memory.estimate.analytic.layers.common import COMMON, dense, reshaped
from kerasmem.memory.estimate.analytic.layers.names import (
    ACTIVATIONS,
    AVERAGE_POOLING,
    CONVOLUTIONS,
    DROPOUTS,
    MAX_POOLING,
    TRANSPOSED,
)
from kerasmem.memory.estimate.analytic.layers.recurrent import RECURRENT
from kerasmem.memory.estimate.analytic.layers.tensorflow.normalization import (
    normalized_group,
    normalized_rms,
)
from kerasmem.memory.estimate.analytic.layers.torch.activations import (
    activated,
    activation,
)
from kerasmem.memory.estimate.analytic.layers.torch.attention import (
    attended,
    dropped,
    operated,
)
from kerasmem.memory.estimate.analytic.layers.torch.convolution import (
    convolved,
    convolved_separably,
    convolved_transposed,
    pooled_average,
    pooled_max,
)
from kerasmem.memory.estimate.analytic.layers.torch.normalization import (
    normalized_batch,
    normalized_layer,
)
from kerasmem.memory.estimate.analytic.site import Handler, Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Tensor


def _dense(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    return dense(t, s, xs, activated)


_VIEWS = (
    *["Permute", "Transpose", "GetItem", "BroadcastTo", "SwapAxes", "Moveaxis"],
    *["Split", "Cropping1D", "Cropping2D", "Cropping3D"],
)

TORCH: dict[str, Handler] = {
    **COMMON,
    **RECURRENT,
    **dict.fromkeys(_VIEWS, reshaped),
    **dict.fromkeys(["Dense", "EinsumDense"], _dense),
    **dict.fromkeys(ACTIVATIONS, activation),
    "BatchNormalization": normalized_batch,
    "LayerNormalization": normalized_layer,
    "GroupNormalization": normalized_group,
    **dict.fromkeys(["RMSNormalization", "UnitNormalization"], normalized_rms),
    **dict.fromkeys([*CONVOLUTIONS, "DepthwiseConv1D", "DepthwiseConv2D"], convolved),
    **dict.fromkeys(TRANSPOSED, convolved_transposed),
    **dict.fromkeys(["SeparableConv1D", "SeparableConv2D"], convolved_separably),
    **dict.fromkeys(MAX_POOLING, pooled_max),
    **dict.fromkeys(AVERAGE_POOLING, pooled_average),
    **dict.fromkeys(DROPOUTS, dropped),
    **dict.fromkeys(["MultiHeadAttention", "GroupedQueryAttention"], attended),
    "DotProductAttention": operated,
}
