"""Maps layer class names to the functions that record their operations.

Sources are the code of the Keras backends, recorded allocations of TensorFlow steps on
a GPU, and torch's differentiation rules. In torch, an operation overwrites its input
only if the code is in-place, and views are free.
"""

from kerasmem.graph.layer_table import class_names
from kerasmem.memory.estimate.analytic.layers import (
    activations,
    attention,
    common,
    convolution,
    normalization,
    recurrent,
)
from kerasmem.memory.estimate.analytic.tape import Handler

OF_CODES = "CodedReversibleEmbedding"

_TABLE: list[tuple[tuple[str, ...] | str, Handler]] = [
    ("Identity InputLayer ActivityRegularization Masking", common.identity),
    ("Flatten Reshape ExpandDims Squeeze Ravel StopGradient", common.reshape),
    (
        "ZeroPadding#D Cropping#D UpSampling#D RepeatVector Permute Pad "
        "GetItem Repeat Tile Flip Roll Slice BroadcastTo SwapAxes Moveaxis Split "
        "Resizing Resize CenterCrop TopK",
        common.copy_entries,
    ),
    ("Transpose", common.transpose),
    ("GlobalAveragePooling#D Mean Sum", common.mean),
    ("GlobalMaxPooling#D Max Min Amax Amin Prod", common.maximum_over_axes),
    ("Add Subtract Average", common.add),
    ("Multiply", common.multiply),
    ("Divide TrueDivide", common.divide),
    ("Negative", common.negate),
    ("Cast", common.cast),
    ("Where", common.where),
    ("Take", common.take),
    ("Embedding", common.embedding),
    ("PositionEmbedding", common.position_embedding),
    (
        "Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr "
        "LogicalNot All Any ZerosLike OnesLike OneHot Argmax Argmin LeftShift "
        "RightShift BitwiseLeftShift BitwiseRightShift BitwiseAnd BitwiseOr BitwiseXor "
        "BitwiseInvert BitwiseNot",
        common.without_gradient,
    ),
    ("Maximum Minimum", common.elementwise_extremum),
    ("Concatenate Stack Hstack Vstack", common.concatenate),
    ("Dot Matmul Einsum Tensordot", common.contract),
    ("Rescaling Normalization", common.rescale),
    ("ConvertToTensor", common.identity),
    ("RandomFlip", common.flip),
    ("RandomContrast RandomBrightness RandomCrop", common.change),
    ("Dense EinsumDense", common.dense),
    ("ChunkedVocabulary", common.chunked_vocabulary),
    (OF_CODES, common.reversible_embedding),
    (class_names("dropout"), common.dropout_layer),
    (class_names("activation"), activations.activation),
    ("Activation Softmax", activations.activation_or_softmax),
    ("MultiHeadAttention GroupedQueryAttention", attention.attention_layer),
    ("DotProductAttention", attention.attention_operation),
    (recurrent.LOOPS, recurrent.recurrent),
    ("RNN ConvLSTM#D", recurrent.loop_over_cell),
    ("Bidirectional", recurrent.bidirectional),
    ("TimeDistributed", recurrent.time_distributed),
    ("Wrapper SpectralNormalization", recurrent.wrapper),
    ("BatchNormalization", normalization.batch_normalization),
    ("LayerNormalization", normalization.layer_normalization),
    ("GroupNormalization", normalization.group_normalization),
    ("RMSNormalization UnitNormalization", normalization.rms_normalization),
    (
        (*class_names("convolution"), *class_names("transposed_convolution")),
        convolution.convolution_layer,
    ),
    ("Conv", convolution.convolution_operation),
    ("DepthwiseConv1D DepthwiseConv2D", convolution.depthwise_convolution),
    ("SeparableConv1D SeparableConv2D", convolution.separable_convolution),
    (class_names("max_pooling"), convolution.max_pooling),
    (class_names("average_pooling"), convolution.average_pooling),
    ("AdaptiveAveragePooling#D", convolution.adaptive_average_pooling),
]
_OTHERWISE_IN_TENSORFLOW: list[tuple[tuple[str, ...] | str, Handler]] = [
    ("RandomTranslation RandomRotation RandomZoom", common.change)
]
_OTHERWISE_IN_TORCH: list[tuple[tuple[str, ...] | str, Handler]] = [
    (
        "Permute Transpose GetItem BroadcastTo SwapAxes Moveaxis Split Cropping#D",
        common.reshape,
    ),
    (
        "RandomTranslation RandomRotation RandomZoom RandomContrast",
        common.torch_change,
    ),
    ("BatchNormalization", normalization.torch_batch_normalization),
    ("LayerNormalization", normalization.torch_layer_normalization),
    (
        (*class_names("convolution"), "DepthwiseConv1D", "DepthwiseConv2D"),
        convolution.torch_convolution,
    ),
    (class_names("transposed_convolution"), convolution.torch_transposed_convolution),
    (class_names("max_pooling"), convolution.torch_max_pooling),
    (class_names("average_pooling"), convolution.torch_average_pooling),
    ("AdaptiveAveragePooling#D", convolution.torch_average_pooling),
]


def _by_name(table: list[tuple[tuple[str, ...] | str, Handler]]) -> dict[str, Handler]:
    return {
        name.replace("#", number): handler
        for classes, handler in table
        for name in (classes.split() if isinstance(classes, str) else classes)
        for number in (("1", "2", "3") if "#" in name else "1")
    }


_HANDLERS = _by_name(_TABLE)
HANDLERS = {
    "tensorflow": {**_HANDLERS, **_by_name(_OTHERWISE_IN_TENSORFLOW)},
    "xla": _HANDLERS,
    "torch": {**_HANDLERS, **_by_name(_OTHERWISE_IN_TORCH)},
}
"""Handlers by the kernels of a `Framework`."""
