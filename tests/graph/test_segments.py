"""A graph cut into pure functions."""

from itertools import pairwise

import keras
import numpy as np
import pytest

from kerasmem.errors import ModelError
from kerasmem.graph.layers import nodes_in_order, own_graph
from kerasmem.graph.segments import recompute, segments_of

L = keras.layers


def cut(model, starts):
    """Return the segments of a model that start at these calls."""
    graph = own_graph(model)
    nodes = nodes_in_order(graph)
    edges = pairwise([0, *starts, len(nodes)])
    return segments_of([nodes[start:end] for start, end in edges], graph.outputs)


def skipping():
    a = keras.Input((3,), name="a")
    b = L.Dense(3, name="b")(a)
    c = L.Dense(3, name="c")(b)
    d = L.Add(name="d")([b, c])
    e = L.Dense(2, name="e")(d)
    return keras.Model(a, [e, b])


def names(tensors):
    return [x._keras_history.operation.name for x in tensors]


def test_a_segment_takes_what_was_made_before_and_gives_what_is_used_after():
    segments = cut(skipping(), [2, 3])
    assert [[n.operation.name for n in s.nodes] for s in segments] == [
        ["b", "c"],
        ["d"],
        ["e"],
    ]
    assert [names(s.inputs) for s in segments] == [["a"], ["b", "c"], ["d"]]
    assert [names(s.outputs) for s in segments] == [["b", "c"], ["d"], ["e"]]


def test_a_treated_segment_is_a_function_of_tensors_in_training_only():
    model = skipping()
    x = np.ones((2, 3), "float32")
    expected = [keras.ops.convert_to_numpy(y) for y in model(x)]
    seen = []

    def treatment(function):
        def run(*tensors):
            seen.append([tuple(t.shape) for t in tensors])
            return function(*tensors)

        return run

    first, second = cut(model, [2])
    undo = recompute(model, [(first, treatment), (second, None)])
    model(x)
    assert seen == []
    for y, before in zip(model(x, training=True), expected, strict=True):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(y), before, rtol=1e-6)
    assert seen == [[(2, 3), (3, 3), (3,), (3, 3), (3,)]]
    undo()
    model(x, training=True)
    assert len(seen) == 1


def test_the_mask_of_a_tensor_goes_in_and_comes_out():
    ids = keras.Input((4,), dtype="int32")
    x = L.Embedding(5, 2, mask_zero=True)(ids)
    x = L.Dropout(0.0)(x)
    model = keras.Model(ids, L.GlobalAveragePooling1D()(x))
    batch = np.array([[1, 2, 0, 0]], "int32")
    expected = keras.ops.convert_to_numpy(model(batch))
    segments = cut(model, [1, 2])
    recompute(model, [(segment, lambda function: function) for segment in segments])
    out = keras.ops.convert_to_numpy(model(batch, training=True))
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    table = keras.ops.convert_to_numpy(model.layers[1].embeddings.value)
    np.testing.assert_allclose(out[0], table[1:3].mean(0), rtol=1e-6)


def test_a_layer_that_assigns_what_is_not_its_own_is_an_error():
    counter = keras.Variable(0.0, trainable=False)

    class Counting(L.Layer):
        def call(self, x):
            counter.assign(1.0)
            return x * 1.0

        def compute_output_spec(self, x):
            return keras.KerasTensor(x.shape, x.dtype)

    inputs = keras.Input((3,))
    model = keras.Model(inputs, Counting(name="counting")(inputs))
    (segment,) = cut(model, [])
    recompute(model, [(segment, lambda function: function)])
    with pytest.raises(ModelError, match=r"of another object.*Received: one among"):
        model(np.ones((1, 3), "float32"), training=True)
