"""What moves channels in which way: the families that the layer table names."""

import numpy as np

from kerasmem.graph.channels.call import Family
from kerasmem.graph.channels.families import attention as attend
from kerasmem.graph.channels.families import convolution as conv
from kerasmem.graph.channels.families import dense as matrix
from kerasmem.graph.channels.families import elementwise as each
from kerasmem.graph.channels.families import movement as move
from kerasmem.graph.channels.families import recurrent as rnn
from kerasmem.graph.channels.families import reduction as over

_PLAIN = {
    "convolution": Family(
        conv.convolved, conv.convolution_config, additions=conv.biased
    ),
    "transposed_convolution": Family(
        conv.transposed, conv.transposed_config, additions=conv.biased
    ),
    "depthwise_convolution": Family(conv.depthwise, additions=conv.biased),
    "separable_convolution": Family(
        conv.separable, conv.separable_config, additions=conv.biased
    ),
    "dense": Family(matrix.dense, matrix.dense_config),
    "einsum_dense": Family(
        matrix.einsum_dense, matrix.einsum_dense_config, additions=matrix.einsum_biased
    ),
    "embedding": Family(matrix.embedding, matrix.embedding_config),
    "batch_normalization": Family(over.per_channel),
    "layer_normalization": Family(over.over_axes),
    "group_normalization": Family(over.over_groups, over.group_config),
    "normalization": Family(over.with_statistics),
    "elementwise": Family(each.passed),
    "combined": Family(each.combined),
    "added": Family(each.combined, additions=each.terms),
    "merged": Family(each.merged),
    "summed": Family(each.merged, additions=each.terms),
    "activation": Family(each.activation_layer),
    "slopes": Family(each.slopes),
    "rescaling": Family(each.rescaled),
    "layer_scale": Family(each.scaled_by_weight, each.scale_config),
    "spatial": Family(over.spatial),
    "spatial_last": Family(over.spatial_last),
    "pooled": Family(over.pooled),
}
"""Those that run at every step within a TimeDistributed too."""

FAMILIES: dict[str, Family] = {
    **_PLAIN,
    "reduced": Family(over.reduced),
    "over_axis": Family(over.over_axis),
    "matmul": Family(over.matmul),
    "einsum": Family(over.einsum),
    "dotted": Family(over.dotted),
    "attention": Family(attend.attention),
    "reshaped": Family(move.reshaped),
    "reshaped_to_a_shape": Family(move.reshaped, move.reshape_layer_config),
    "reshaped_by_an_operation": Family(move.reshaped, move.reshape_config),
    "concatenated": Family(move.concatenated),
    "stacked": Family(move.stacked),
    "padded": Family(move.padded),
    "split": Family(move.moved(move.split), move.split_config),
    "indexed": Family(move.item, arguments=move.item_arguments),
    "taken": Family(move.taken, arguments=move.taken_arguments),
    "permuted": Family(move.moved(lambda op, x: x.transpose(0, *op.dims))),
    "repeated": Family(move.moved(lambda op, x: x[:, None].repeat(op.n, 1))),
    "transposed": Family(move.moved(lambda op, x: x.transpose(op.axes))),
    "axis_moved": Family(
        move.moved(lambda op, x: np.moveaxis(x, op.source, op.destination))
    ),
    "axes_swapped": Family(move.moved(lambda op, x: x.swapaxes(op.axis1, op.axis2))),
    "expanded": Family(move.moved(lambda op, x: np.expand_dims(x, op.axis))),
    "flipped": Family(move.moved(lambda op, x: np.flip(x, op.axis))),
    "tiled": Family(move.moved(lambda op, x: np.tile(x, op.repeats))),
    "recurrent": Family(rnn.recurrent, rnn.recurrent_config),
    "bidirectional": Family(rnn.both_ways, rnn.both_ways_config),
    "time_distributed": rnn.at_every_step(_PLAIN),
    "multi_head_attention": Family(
        attend.multi_head,
        attend.multi_head_config,
        factors=attend.rescaled_query,
        additions=attend.biased_heads,
    ),
    "grouped_query_attention": Family(
        attend.grouped_query,
        attend.grouped_query_config,
        factors=attend.rescaled_query,
        additions=attend.biased_heads,
    ),
}
"""By the word in the column `channels`; what has none is frozen."""
