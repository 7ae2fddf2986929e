"""The one table of operations whose channels are known."""

from itertools import product

import numpy as np

from kerasmem.graph.channels.call import Family
from kerasmem.graph.channels.families import attention as attend
from kerasmem.graph.channels.families import convolution as conv
from kerasmem.graph.channels.families import dense as matrix
from kerasmem.graph.channels.families import elementwise as each
from kerasmem.graph.channels.families import indexing as index
from kerasmem.graph.channels.families import movement as move
from kerasmem.graph.channels.families import normalization as norm
from kerasmem.graph.channels.families import recurrent as rnn
from kerasmem.graph.channels.families import reduction as over


def _of(family: Family, package: str, names: str, ends: str = "") -> dict[str, Family]:
    """Return a row for every name, with each of `ends` behind it."""
    return {
        f"{package}.{name}{end}": family
        for name, end in product(names.split(), ends.split() or [""])
    }


_KERNELS = {
    **_of(
        Family(conv.convolved, conv.convolution_config, additions=conv.biased),
        "layers",
        "Conv",
        "1D 2D 3D",
    ),
    **_of(
        Family(conv.transposed, conv.transposed_config, additions=conv.biased),
        "layers",
        "Conv1DTranspose Conv2DTranspose Conv3DTranspose",
    ),
    **_of(
        Family(conv.depthwise, additions=conv.biased),
        "layers",
        "DepthwiseConv",
        "1D 2D",
    ),
    **_of(
        Family(conv.separable, conv.separable_config, additions=conv.biased),
        "layers",
        "SeparableConv",
        "1D 2D",
    ),
    "layers.Dense": Family(matrix.dense, matrix.dense_config),
    "layers.EinsumDense": Family(
        matrix.einsum_dense, matrix.einsum_dense_config, additions=matrix.einsum_biased
    ),
    "layers.Embedding": Family(matrix.embedding, matrix.embedding_config),
}

_NORMALIZATION = {
    "layers.BatchNormalization": Family(norm.per_channel),
    **_of(
        Family(norm.over_axes),
        "layers",
        "LayerNormalization RMSNormalization UnitNormalization",
    ),
    "layers.GroupNormalization": Family(norm.over_groups, norm.group_config),
    "layers.Normalization": Family(norm.with_statistics),
}

_EACH_ENTRY = {
    **_of(
        Family(each.passed),
        "layers",
        "Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianDropout "
        "GaussianNoise AlphaDropout ActivityRegularization Identity ReLU LeakyReLU ELU",
    ),
    **_of(
        Family(each.passed),
        "ops",
        "Absolute Cast Celu Clip Cos Elu Exp Gelu HardShrink HardSigmoid HardSilu "
        "HardTanh LeakyRelu Log LogSigmoid Mish Negative Reciprocal Relu Relu6 Rsqrt "
        "Selu Sigmoid Sign Silu Sin SoftShrink Softplus Softsign SparsePlus Sqrt "
        "Square Squareplus StopGradient Tanh TanhShrink Threshold",
    ),
    **_of(
        Family(each.combined),
        "ops",
        "Subtract Multiply Divide TrueDivide Maximum Minimum Power Where Greater "
        "GreaterEqual Less LessEqual Equal NotEqual LogicalAnd LogicalOr",
    ),
    "ops.Add": Family(each.combined, additions=each.terms),
    **_of(Family(each.merged), "layers", "Subtract Multiply Maximum Minimum"),
    **_of(Family(each.merged, additions=each.terms), "layers", "Add Average"),
    "layers.Activation": Family(each.activation_layer),
    "layers.PReLU": Family(each.slopes),
    "layers.Rescaling": Family(each.rescaled),
    "applications.LayerScale": Family(each.scaled_by_weight, each.scale_config),
    "applications.CustomScaleLayer": Family(each.combined),
}

_SPATIAL = {
    **_of(Family(over.spatial), "layers", "MaxPooling AveragePooling", "1D 2D 3D"),
    **_of(Family(over.spatial), "layers", "ZeroPadding Cropping UpSampling", "2D 3D"),
    "layers.ZeroPadding1D": Family(over.spatial),
    **_of(Family(over.spatial_last), "layers", "Cropping UpSampling", "1D"),
    **_of(
        Family(over.pooled),
        "layers",
        "GlobalMaxPooling GlobalAveragePooling",
        "1D 2D 3D",
    ),
}

_OVER_AXES = {
    **_of(
        Family(over.reduced), "ops", "Mean Sum Max Min Prod Var Std Amax Amin Logsumexp"
    ),
    **_of(Family(over.over_axis), "ops", "Softmax LogSoftmax Normalize"),
    "layers.Softmax": Family(over.over_axis),
    "ops.Matmul": Family(over.matmul),
    "ops.Einsum": Family(over.einsum),
    "layers.Dot": Family(over.dotted),
    "layers.Attention": Family(attend.attention),
}

_MOVING = {
    "layers.Flatten": Family(move.reshaped),
    "layers.Reshape": Family(move.reshaped, move.reshape_layer_config),
    "ops.Reshape": Family(move.reshaped, move.reshape_config),
    "layers.Concatenate": Family(move.concatenated),
    "ops.Concatenate": Family(move.concatenated),
    "ops.Stack": Family(move.stacked),
    "ops.Pad": Family(move.padded),
    "ops.Split": Family(move.moved(index.split), index.split_config),
    "ops.GetItem": Family(index.item, arguments=index.item_arguments),
    "ops.Take": Family(index.taken, arguments=index.taken_arguments),
    "layers.Permute": Family(move.moved(lambda op, x: x.transpose(0, *op.dims))),
    "layers.RepeatVector": Family(move.moved(lambda op, x: x[:, None].repeat(op.n, 1))),
    "ops.Transpose": Family(move.moved(lambda op, x: x.transpose(op.axes))),
    "ops.Moveaxis": Family(
        move.moved(lambda op, x: np.moveaxis(x, op.source, op.destination))
    ),
    "ops.Swapaxes": Family(move.moved(lambda op, x: x.swapaxes(op.axis1, op.axis2))),
    "ops.ExpandDims": Family(move.moved(lambda op, x: np.expand_dims(x, op.axis))),
    "ops.Flip": Family(move.moved(lambda op, x: np.flip(x, op.axis))),
    "ops.Tile": Family(move.moved(lambda op, x: np.tile(x, op.repeats))),
}

_PLAIN = {**_KERNELS, **_NORMALIZATION, **_EACH_ENTRY, **_SPATIAL}

FAMILIES: dict[str, Family] = {
    **_PLAIN,
    **_OVER_AXES,
    **_MOVING,
    **_of(Family(rnn.recurrent, rnn.recurrent_config), "layers", "SimpleRNN GRU LSTM"),
    "layers.Bidirectional": Family(rnn.both_ways, rnn.both_ways_config),
    "layers.TimeDistributed": rnn.at_every_step(_PLAIN),
    "layers.MultiHeadAttention": Family(
        attend.multi_head,
        attend.multi_head_config,
        factors=attend.rescaled_query,
        additions=attend.biased_heads,
    ),
    "layers.GroupedQueryAttention": Family(
        attend.grouped_query,
        attend.grouped_query_config,
        factors=attend.rescaled_query,
        additions=attend.biased_heads,
    ),
}
"""What is known of an operation, by `kind`; what is not in here is frozen."""
