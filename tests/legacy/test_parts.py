"""The small pieces of a conversion, each against an independent one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasmem.extras.legacy.file import clustered, masked
from kerasmem.extras.legacy.keras_archive import ArchiveObject, snake_case
from kerasmem.extras.legacy.layers import _NAMES, operator
from kerasmem.files.load import hard_sigmoid_of_keras_2
from kerasmem.graph.values import to_numpy

X = np.random.default_rng(0).uniform(0.1, 0.9, (2, 3, 4)).astype("float32")
Y = np.random.default_rng(1).uniform(1.0, 2.0, (2, 3, 4)).astype("float32")
ARGUMENTS = {
    "cast": {"dtype": "float16"},
    "clip_by_value": {"clip_value_min": 0.3, "clip_value_max": 0.5},
    "concat": {"axis": 1},
    "expand_dims": {"axis": -1},
    "nn.leaky_relu": {"alpha": 0.1},
    "nn.softmax": {"axis": 1},
    "repeat": {"repeats": 2, "axis": 1},
    "reshape": {"shape": [2, 12]},
    "stack": {"axis": -1},
    "tile": {"multiples": [1, 2, 1]},
    "transpose": {"perm": [0, 2, 1]},
}


def function_of_tensorflow(symbol):
    if symbol == "__operators__.add":
        return tf.math.add
    found = tf
    for name in symbol.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("symbol", sorted(_NAMES))
def test_a_function_does_what_that_of_tensorflow_does(symbol):
    x, arguments = X, ARGUMENTS.get(symbol, {})
    if symbol in ("concat", "stack"):
        x = [X, Y]
    elif symbol == "squeeze":
        x, arguments = X[:, :1], {"axis": [1]}
    elif symbol.startswith("math.reduce_"):
        arguments = {"axis": [1, 2], "keepdims": True}
    expected = function_of_tensorflow(symbol)
    try:
        wanted = expected(x, **arguments)
    except TypeError:
        arguments = {"y": Y}
        wanted = expected(x, Y)
    given = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    found = to_numpy(operator(symbol)(given, **arguments, name=None))
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6)
    assert found.shape == wanted.shape


def test_products_of_matrices_and_parts_of_a_tensor():
    product = operator("linalg.matmul")(X, Y, transpose_b=True, adjoint_a=False)
    np.testing.assert_allclose(
        to_numpy(product), X @ Y.swapaxes(1, 2), rtol=1e-5, atol=1e-6
    )
    spec = [{"start": None, "stop": None, "step": None}, 0, {"start": 1}]
    spec[2] = {"start": 1, "stop": None, "step": 2}
    part = operator("__operators__.getitem")(keras.ops.array(X), slice_spec=spec)
    np.testing.assert_array_equal(to_numpy(part), X[:, 0, 1::2])


def test_the_hard_sigmoid_of_keras_2_is_another_than_that_of_keras_3():
    x = np.array([-3.0, -2.5, -1.0, 0.0, 1.0, 2.5, 3.0], "float32")
    np.testing.assert_allclose(
        to_numpy(hard_sigmoid_of_keras_2(keras.ops.array(x))),
        [0, 0, 0.3, 0.5, 0.7, 1, 1],
        atol=1e-7,
    )


@pytest.mark.one_backend
def test_clusters_follow_the_weight_and_zeros_stay_where_they_were():
    weight = np.array([0.1, 0.9, 2.4, -0.2])
    stale = np.array([1, 1, 2, 0])
    found = clustered(weight, np.array([0.0, 1.0, 2.0]), stale)
    np.testing.assert_array_equal(found, [0, 1, 2, 0])
    drifted = clustered(np.array([0.8, 0.8]), np.array([0.0, 1.0]), np.array([0, 1]))
    np.testing.assert_array_equal(drifted, [0, 1])
    per_channel = clustered(
        np.array([[0.4, 0.4]]), np.array([[0.1, 1.0], [3.0, 2.0]]), np.array([[0, 0]])
    )
    np.testing.assert_array_equal(per_channel, [[0.1, 2.0]])


@pytest.mark.one_backend
def test_masks_find_their_weights_by_shape_in_order():
    kernel, bias, recurrent = np.ones((2, 3)), np.ones(3), np.ones((3, 3))
    mask = np.eye(2, 3)
    found = masked([kernel, bias, recurrent], [mask, np.eye(3)])
    for a, b in zip(found, [mask, bias, np.eye(3)], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Dense", "dense"),
        ("LSTM", "lstm"),
        ("SeparableConv2D", "separable_conv2d"),
        ("MultiHeadAttention", "multi_head_attention"),
        ("PReLU", "p_re_lu"),
        ("Custom>MyLayer", "my_layer"),
        ("QuantizeWrapperV2", "quantize_wrapper_v2"),
    ],
)
def test_names_are_those_that_keras_2_makes_of_classes(name, expected):
    assert snake_case(name) == expected


@pytest.mark.one_backend
def test_a_list_is_counted_by_class_or_as_a_whole():
    by_class = ArchiveObject(
        parts={"dense": ArchiveObject({"0": X}), "dense_1": ArchiveObject({"0": Y})}
    )
    found = by_class.listed(["Dense", "ReLU", "Dense"])
    assert [len(part.arrays) for part in found] == [1, 0, 1]
    assert found[2].arrays["0"] is Y
