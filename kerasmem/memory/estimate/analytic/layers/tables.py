"""What each layer runs: a table from the name of a class to a function.

Read in the Keras backends, in the allocations of real TensorFlow steps on a GPU (names
of the operations, sizes, lifetimes), and in torch's rules of differentiation: there
nothing is written over its input unless the code says so, and views cost nothing.
"""

from kerasmem.memory.estimate.analytic.layers import (
    activations,
    attention,
    common,
    convolution,
    names,
    normalization,
    recurrent,
)
from kerasmem.memory.estimate.analytic.tape import Handler

_TABLE: list[tuple[tuple[str, ...] | str, Handler]] = [
    ("Identity InputLayer ActivityRegularization Masking", common.same),
    ("Flatten Reshape ExpandDims Squeeze Ravel StopGradient", common.reshaped),
    (
        "ZeroPadding#D Cropping#D UpSampling#D RepeatVector Permute Transpose Pad "
        "GetItem Repeat Tile Flip Roll Slice BroadcastTo SwapAxes Moveaxis Split "
        "Resizing Resize CenterCrop TopK",
        common.moved,
    ),
    ("GlobalAveragePooling#D Mean Sum", common.mean_over_space),
    ("GlobalMaxPooling#D Max Min Amax Amin Prod", common.max_over_space),
    ("Add Subtract Average", common.summed),
    ("Multiply", common.multiplied),
    ("Divide TrueDivide", common.divided),
    ("Negative", common.negated),
    ("Cast", common.cast),
    ("Where", common.chosen),
    ("Take", common.taken),
    ("Embedding", common.looked_up),
    ("PositionEmbedding", common.positioned),
    (
        "Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr "
        "LogicalNot All Any ZerosLike OnesLike OneHot Argmax Argmin",
        common.told,
    ),
    ("Maximum Minimum", common.compared),
    ("Concatenate Stack Hstack Vstack", common.concatenated),
    ("Dot Matmul Einsum Tensordot", common.contracted),
    ("Rescaling Normalization", common.rescaled),
    ("Dense EinsumDense", common.dense),
    (names.DROPOUTS, common.dropped),
    (names.ACTIVATIONS, activations.activation),
    ("Activation Softmax", activations.activation_or_softmax),
    ("MultiHeadAttention GroupedQueryAttention", attention.attended),
    ("DotProductAttention", attention.operated),
    (recurrent.LOOPS, recurrent.recurrent),
    ("Bidirectional", recurrent.both_ways),
    ("TimeDistributed", recurrent.over_time),
    ("Wrapper SpectralNormalization", recurrent.wrapped),
    ("BatchNormalization", normalization.normalized_batch),
    ("LayerNormalization", normalization.normalized_layer),
    ("GroupNormalization", normalization.normalized_group),
    ("RMSNormalization UnitNormalization", normalization.normalized_rms),
    ((*names.CONVOLUTIONS, *names.TRANSPOSED), convolution.convolved),
    ("DepthwiseConv1D DepthwiseConv2D", convolution.convolved_depthwise),
    ("SeparableConv1D SeparableConv2D", convolution.convolved_separably),
    (names.MAX_POOLING, convolution.pooled_max),
    (names.AVERAGE_POOLING, convolution.pooled_average),
]
_OTHERWISE_IN_TORCH: list[tuple[tuple[str, ...] | str, Handler]] = [
    (
        "Permute Transpose GetItem BroadcastTo SwapAxes Moveaxis Split Cropping#D",
        common.reshaped,
    ),
    ("BatchNormalization", normalization.normalized_batch_in_torch),
    ("LayerNormalization", normalization.normalized_layer_in_torch),
    (
        (*names.CONVOLUTIONS, "DepthwiseConv1D", "DepthwiseConv2D"),
        convolution.convolved_in_torch,
    ),
    (names.TRANSPOSED, convolution.convolved_transposed_in_torch),
    (names.MAX_POOLING, convolution.pooled_max_in_torch),
    (names.AVERAGE_POOLING, convolution.pooled_average_in_torch),
]


def _by_name(table: list[tuple[tuple[str, ...] | str, Handler]]) -> dict[str, Handler]:
    """Return the functions by class; `#` in a name stands for 1, 2 and 3."""
    return {
        name.replace("#", number): handler
        for classes, handler in table
        for name in (classes.split() if isinstance(classes, str) else classes)
        for number in (("1", "2", "3") if "#" in name else "1")
    }


_HANDLERS = _by_name(_TABLE)
HANDLERS = {
    "tensorflow": _HANDLERS,
    "xla": _HANDLERS,
    "torch": {**_HANDLERS, **_by_name(_OTHERWISE_IN_TORCH)},
}
"""By kernels (see `Framework`)."""
