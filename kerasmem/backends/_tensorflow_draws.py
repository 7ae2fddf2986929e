"""Finding random numbers that come from a generator of the graph itself."""

import tensorflow as tf

_DRAWING = {
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
}


def draws(graph: tf.Graph) -> bool:
    """Return whether the graph, or a function that it calls, draws by itself.

    As `tf.random.normal` does. What has its seed in a tensor or variable, as in
    `keras.random`, does not.
    """
    definition = graph.as_graph_def()
    nodes = [definition.node, *(f.node_def for f in definition.library.function)]
    return any(node.op in _DRAWING for among in nodes for node in among)
