"""Where a graph is cut, and what of it is stored."""

import keras
import pytest

from kerasmem.graph.layers import nodes_in_order, own_graph
from kerasmem.memory.compress_activations.plan import Role, Way, choose, role_of

pytestmark = pytest.mark.one_backend

L = keras.layers


def cuts(model, chosen=lambda operation: True, pieces=()):
    """Return the segments as names of operations, with how each is run."""
    graph = own_graph(model)
    nodes = nodes_in_order(graph)
    packs = [chosen(node.operation) for node in nodes]
    found = choose(nodes, graph.outputs, packs, pieces)
    return [
        (way.name, " ".join(node.operation.name for node in segment.nodes))
        for segment, way in found
    ]


def test_a_chain_is_cut_behind_kernels_so_that_each_output_is_stored_once():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(4, 3, name="a"),
            L.BatchNormalization(name="bn"),
            L.ReLU(name="relu"),
            L.MaxPooling2D(name="pool"),
            L.Conv2D(4, 3, name="b"),
            L.Flatten(name="flat"),
            L.Dropout(0.5, name="drop"),
            L.Dense(10, name="head"),
        ]
    )
    assert cuts(model) == [
        ("PACKED", "a"),
        ("PACKED", "bn relu pool b"),
        ("EMPTY", "flat drop"),
        ("PACKED", "head"),
    ]


def test_layers_that_multiply_the_same_tensor_share_what_is_stored():
    inputs = keras.Input((8, 8, 4))
    x = L.Conv2D(4, 3, name="stem")(inputs)
    x = L.ReLU(name="relu")(x)
    a = L.Conv2D(4, 1, name="a")(x)
    b = L.Conv2D(4, 1, name="b")(x)
    model = keras.Model(inputs, L.Add(name="sum")([a, b]))
    assert cuts(model) == [
        ("PACKED", "stem"),
        ("PACKED", "relu a b"),
        ("EMPTY", "sum"),
    ]


def test_scores_stay_with_their_softmax_because_of_masks():
    q, k, v = (keras.Input((6, 8), name=name) for name in "qkv")
    mask = keras.Input((6, 6), name="mask")
    scores = L.Dot((2, 2), name="scores")([q, k])
    shares = L.Softmax(name="shares")(L.Add(name="masked")([scores, mask]))
    model = keras.Model([q, k, v, mask], L.Dot((2, 1), name="mix")([shares, v]))
    assert cuts(model) == [("PACKED", "scores masked shares"), ("PACKED", "mix")]


def test_what_is_not_chosen_and_nested_models_are_run_as_ever():
    inner = keras.Sequential([keras.Input((8,)), L.Dense(8)], name="inner")
    inputs = keras.Input((8,))
    x = L.Dense(8, name="a")(inner(inputs))
    model = keras.Model(inputs, L.Dense(8, name="b")(x))
    assert cuts(model, lambda operation: operation.name != "b") == [
        ("PLAIN", "inner"),
        ("PACKED", "a"),
        ("PLAIN", "b"),
    ]


def test_a_piece_is_one_segment_and_what_follows_it_is_cut_as_before():
    x = inputs = keras.Input((8,))
    for name in "abcd":
        x = L.ReLU(name=f"{name}_relu")(L.Dense(8, name=name)(x))
    model = keras.Model(inputs, L.Add(name="sum")([x, inputs]))
    assert cuts(model, lambda operation: "c" not in operation.name, ((1, 4),)) == [
        ("PACKED", "a"),
        ("RECOMPUTED", "a_relu b b_relu"),
        ("PLAIN", "c c_relu"),
        ("PACKED", "d"),
        ("PACKED", "d_relu sum"),
    ]


def test_every_segment_follows_those_that_its_inputs_come_from():
    model = keras.applications.MobileNetV2(
        input_shape=(32, 32, 3), weights=None, alpha=0.35
    )
    graph = own_graph(model)
    known = {id(x) for x in graph.inputs}
    nodes = nodes_in_order(graph)
    found = choose(nodes, graph.outputs, [True] * len(nodes))
    for segment, _ in found:
        assert {id(x) for x in segment.inputs} <= known
        known |= {id(y) for y in segment.outputs}
    assert {id(y) for y in graph.outputs} <= known
    assert sum(len(segment.nodes) for segment, _ in found) == len(nodes)
    stored = sum(len(s.inputs) for s, way in found if way is Way.PACKED)
    kinds = (L.Conv2D, L.DepthwiseConv2D)
    convolutions = sum(isinstance(layer, kinds) for layer in model.layers)
    # One tensor a convolution; the few residual sums and the head come on top.
    assert stored <= convolutions + 12


@pytest.mark.parametrize(
    ("layer", "role"),
    [
        (L.Dense(3), Role.KERNEL),
        (L.Add(), Role.LINEAR),
        (L.Add(activity_regularizer="l2"), Role.KERNEL),
        (L.Activation("linear"), Role.LINEAR),
        (L.Activation("gelu"), Role.CHEAP),
        (L.Activation("softmax"), Role.JOINING),
        (L.BatchNormalization(), Role.CHEAP),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_roles_of_layers(layer, role):
    assert role_of(layer) is role


def test_a_subclass_of_a_known_layer_may_do_anything():
    class Odd(L.Add):
        pass

    assert role_of(Odd()) is Role.KERNEL


def test_roles_of_operations():
    x = keras.Input((4, 4))
    calls = {
        Role.LINEAR: x + 1.0,
        Role.CHEAP: keras.ops.exp(x),
        Role.JOINING: keras.ops.softmax(x),
        Role.KERNEL: keras.ops.matmul(x, x),
    }
    for role, y in calls.items():
        assert role_of(y._keras_history.operation) is role
