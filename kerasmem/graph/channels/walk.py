"""Labels the channels of a model call by call, by operation family."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.errors import ModelError
from kerasmem.graph.calls import Call, Walk
from kerasmem.graph.channels.families import attention as attend
from kerasmem.graph.channels.families import convolution as conv
from kerasmem.graph.channels.families import dense as matrix
from kerasmem.graph.channels.families import elementwise as each
from kerasmem.graph.channels.families import movement as move
from kerasmem.graph.channels.families import recurrent as rnn
from kerasmem.graph.channels.families import reduction as over
from kerasmem.graph.channels.labelled_calls import Family, LabelledCall, length
from kerasmem.graph.channels.labels import LabelledTensor, Labels, narrow, of_rank
from kerasmem.graph.channels.tied import is_tied
from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.layers import listed_graph, own_graph, readers, sublayers
from kerasmem.types import Model, Operation


@dataclass(frozen=True, eq=False)
class LabelledModel:
    """Channel labels of a model.

    `calls` and `tensors` are keyed by the `id` of the node and of the `KerasTensor`.
    `unknown` contains the names of unsupported operations, with the reason.
    """

    labels: Labels
    calls: dict[int, LabelledCall]
    tensors: dict[int, LabelledTensor]
    unknown: dict[str, str]


def label_channels(model: Model) -> LabelledModel:
    """Labels the channels of a model with a graph."""
    graph = own_graph(model)
    if graph is None:
        raise ModelError(
            f"The model {model.name!r} has no graph, so its channels cannot be traced. "
            "Expected a Sequential or Functional model. "
            f"Received: {type(model).__name__}."
        )
    labels = Labels()
    labelled_model = LabelledModel(labels, {}, {}, {})
    inputs = []
    for x in graph.inputs:
        why = f"is the input {x.name!r}"
        inputs.append(LabelledTensor(labels.frozen(len(x.shape), why), tuple(x.shape)))
    for number, y in enumerate(_Labelling(labelled_model).run(graph, inputs)):
        labels.freeze(y.array, f"has the channels of output {number} of the model")
    labels.tensors.extend(labelled_model.tensors.values())
    _freeze_tied(labelled_model, model)
    return labelled_model


def _freeze_tied(labelled: LabelledModel, model: Model) -> None:
    names = readers(model)
    for layer in filter(is_tied, sublayers(model)):
        names |= {id(x): repr(layer.name) for x in layer.tied_to()[-1].variables}
    for use in labelled.labels.uses:
        if id(use.variable) in names:
            why = f"is read by {names[id(use.variable)]} too"
            labelled.labels.freeze(use.labels, why)


def family_of(operation: Operation) -> Family | None:
    """Returns the family of an operation, or None if the operation is unsupported."""
    if getattr(operation, "quantization_mode", None) or getattr(
        operation, "lora_enabled", False
    ):
        return None
    return FAMILIES.get(entry_of(operation).channels or "")


class _Labelling(Walk):
    """Labels every tensor, starting at the inputs."""

    def __init__(self, model: LabelledModel) -> None:
        self._model = model

    def settle(
        self, tensors: Sequence[Any], values: Sequence[Any]
    ) -> list[LabelledTensor]:
        """Records labels. Labels of a shared model are united over all calls."""
        tensors_by_id, labels = self._model.tensors, self._model.labels
        for tensor, value in zip(tensors, values, strict=True):
            array = value.array
            if not _fits(array, tensor.shape):
                # A nested model can be called with another shape than its input.
                why = f"reaches {tensor.name!r}, which has another shape"
                labels.freeze(array, why)
                array = labels.frozen(len(tensor.shape), why)
            if id(tensor) in tensors_by_id:
                labels.unite(tensors_by_id[id(tensor)].array, array)
            else:
                tensors_by_id[id(tensor)] = LabelledTensor(array, tuple(tensor.shape))
        return [tensors_by_id[id(tensor)] for tensor in tensors]

    def entering(self, call: Call, outer: Any, own: Any, value: Any) -> Any:
        """Returns the labels unchanged, because casts do not affect channels."""
        del call, outer, own
        return value

    def run(
        self, graph: Any, inputs: Sequence[Any], around: Call | None = None
    ) -> list[Any]:
        """Labels a graph. Freezes a nested model that cannot be rebuilt."""
        labels = self._model.labels
        first = len(labels.uses)
        outputs = super().run(graph, inputs, around)
        if around is not None and listed_graph(around.operation) is None:
            why = f"is in {around.operation.name!r}, whose config does not list layers"
            tensors = [x.array for x in (*inputs, *outputs)]
            for array in (*tensors, *(use.labels for use in labels.uses[first:])):
                labels.freeze(array, why)
        return outputs

    def visit(self, call: Call) -> list[LabelledTensor]:
        node, operation = call.nodes[-1], call.operation
        shapes = tuple(tuple(y.shape) for y in node.outputs)
        labelled_call = LabelledCall(
            operation, *call.bound(), shapes, self._model.labels
        )
        family = family_of(operation)
        if family is None:
            why = f"{type(operation).__name__} {operation.name!r} is not supported"
            self._model.unknown[operation.name] = why
            why = f"is next to an unsupported operation: {why}"
            arrays = labelled_call.frozen(why)
        else:
            arrays = family.label(labelled_call)
        for array, shape in zip(arrays, shapes, strict=True):
            output_labels = _closed(
                labelled_call, narrow(of_rank(array, len(shape))), shape
            )
            labelled_call.outputs.append(LabelledTensor(output_labels, shape))
        self._model.calls[id(node)] = labelled_call
        return labelled_call.outputs


def _fits(array: Any, shape: Sequence[int | None]) -> bool:
    return array.ndim == len(shape) and all(
        length == 1 or size in (None, length)
        for length, size in zip(array.shape, shape, strict=True)
    )


def _closed(call: LabelledCall, array: Any, shape: tuple[int | None, ...]) -> Any:
    for axis, size in enumerate(shape):
        if size is None and array.shape[axis] > 1:
            why = f"{call.operation.name!r} moves it to an axis of unknown length"
            return call.labels.freeze(array, why).take([0], axis)
    return array


_PLAIN = {
    "convolution": Family(
        conv.convolved, conv.convolution_config, additions=conv.biased
    ),
    "transposed_convolution": Family(
        conv.transposed, length("filters", "kernel", -2), additions=conv.biased
    ),
    "depthwise_convolution": Family(conv.depthwise, additions=conv.biased),
    "separable_convolution": Family(
        conv.separable, length("filters", "pointwise_kernel", -1), additions=conv.biased
    ),
    "dense": Family(matrix.dense, length("units", "kernel", 1)),
    "einsum_dense": Family(
        matrix.einsum_dense, matrix.einsum_dense_config, additions=matrix.einsum_biased
    ),
    "embedding": Family(matrix.embedding, length("output_dim", "embeddings", 1)),
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
    "layer_scale": Family(each.scaled_by_weight, length("projection_dim", "gamma", 0)),
    "spatial": Family(over.spatial),
    "spatial_last": Family(over.spatial_last),
    "pooled": Family(over.pooled),
}
"""Families that a TimeDistributed layer also supports."""

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
    "squeezed": Family(move.moved(lambda op, x: np.squeeze(x, op.axis))),
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
"""Families by the column `channels`. Operations without a family are frozen."""
