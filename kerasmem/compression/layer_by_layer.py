"""Evaluates a model layer by layer while its weights stay on disk.

Keras needs all weights in memory, and in eager mode also all activations. Here, each
layer loads its weights only for its call, and activations are freed after their last
use.
"""

from collections import Counter
from typing import Any

import keras

from kerasmem.backends import current
from kerasmem.backends.lazy import source_at_rest
from kerasmem.files.data.check import flat_samples
from kerasmem.files.data.forms import labeled_batches
from kerasmem.graph.flat_calls import flatten
from kerasmem.graph.layers import nodes_in_order, own_graph, sublayers
from kerasmem.graph.outputs import output_of
from kerasmem.types import Dataset, Layer, Model, Operation, Tensor


def is_offloaded(model: Model) -> bool:
    """Returns whether weights of a model stay on disk."""
    return any(source_at_rest(variable) is not None for variable in model.variables)


def evaluate_by_layers(
    model: Model, data: Dataset, batch_size: int
) -> dict[str, float]:
    """Returns the losses and metrics of a model, like `model.evaluate`.

    The loss of each output is the mean over samples. Keras averages over batches, which
    differs if the last batch is smaller.

    The model must use the standard evaluation of Keras.
    """
    model.reset_metrics()
    total, count, forward = 0.0, 0, _forward(model)
    with current().inference():
        for batch in labeled_batches(data, batch_size):
            x, y, weight = keras.tree.map_structure(_tensor, batch)
            outputs = forward(batch[0])
            loss = model.compute_loss(x, y, outputs, weight, training=False)
            samples = len(keras.tree.flatten(batch[0])[0])
            total, count = total + samples * float(loss), count + samples
            model.compute_metrics(x, y, outputs, sample_weight=weight)
    values = {k: float(value) for k, value in model.get_metrics_result().items()}
    return {**values, "loss": total / max(count, 1)}


def _tensor(array: Tensor) -> Any:
    return None if array is None else keras.ops.convert_to_tensor(array)


def _forward(model: Model) -> Any:
    if own_graph(model) is None or _adds_losses_twice(model):
        return lambda x: model(x, training=False)
    calls, form = flatten(model), output_of(model)

    def forward(x: Tensor) -> Any:
        count = len(keras.tree.flatten(x)[0])
        tensors = map(keras.ops.convert_to_tensor, flat_samples(model, (x,), count))
        return keras.tree.pack_sequence_as(form, calls.run([*tensors], _wait))

    return forward


def _wait(_: str, tensor: Tensor) -> None:
    # JAX runs asynchronously, so the weights of all queued layers would be in memory.
    keras.ops.convert_to_numpy(tensor)


def _adds_losses_twice(model: Model) -> bool:
    """Returns whether a layer that is called several times may add a loss each time.

    Outside of a model call, Keras keeps only the losses of the last call.
    """
    graph = own_graph(model)
    counts = Counter(id(node.operation) for node in nodes_in_order(graph))
    operations = [
        n.operation for n in nodes_in_order(graph) if counts[id(n.operation)] > 1
    ]
    inside = [each for one in operations for each in _layers(one)]
    return any(_may_add_loss(layer) for layer in inside)


def _layers(operation: Operation) -> list[Any]:
    return sublayers(operation) if isinstance(operation, keras.layers.Layer) else []


def _may_add_loss(layer: Layer) -> bool:
    is_keras = type(layer).__module__.partition(".")[0] in ("keras", "kerasmem")
    adds_by_itself = isinstance(layer, keras.layers.ActivityRegularization)
    return not is_keras or adds_by_itself or layer.activity_regularizer is not None
