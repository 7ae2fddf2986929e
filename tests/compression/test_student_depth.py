"""A student with fewer blocks than its teacher, and the weights of those it keeps."""

import keras
import numpy as np
import pytest
from keras import layers

import kerasmem as km
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.clone import clone
from tests.constructed import Net
from tests.masked import called, randomized


def perceptron(*units, activation=True):
    model = keras.Sequential([keras.Input((6,))])
    for width in units:
        model.add(layers.Dense(width))
        if activation:
            model.add(layers.ReLU())
    model.add(layers.Dense(3))
    model.compile("sgd", "mse")
    return model


@pytest.mark.one_backend
@pytest.mark.parametrize(("kind", "stay"), [("plain", [1, 3]), ("alternating", [2, 3])])
def test_blocks_that_an_argument_counts_stay_where_they_do_the_same(kind, stay):
    teacher = randomized(Net(num_layers=4, kind=kind))
    student = km.make_student(teacher, depth=0.5)
    assert type(student) is Net
    assert student.num_layers == 2
    copy = clone(teacher)
    for number in {*range(4)} - {*stay}:
        for weight in copy.get_layer(f"block_{number}").weights:
            weight.assign(np.zeros(weight.shape))  # the block hands on what came in
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    np.testing.assert_allclose(
        called(student, x)[0], called(copy, x)[0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.one_backend
def test_a_single_block_that_an_argument_counts_is_refused():
    with pytest.raises(ModelError, match=r"num_layers, at least 2.*Received: \{\}"):
        km.make_student(Net(num_layers=1), depth=0.5)


@pytest.mark.one_backend
@pytest.mark.parametrize("depth", [1, -0.1, "half", float("nan"), True])
def test_a_depth_out_of_range_is_refused(depth):
    with pytest.raises(ConfigError, match="at least 0 and less than 1"):
        km.make_student(perceptron(7, 7), depth=depth)


@pytest.mark.one_backend
def test_neither_narrower_nor_less_deep_is_refused():
    with pytest.raises(ConfigError, match="make the student smaller than its teacher"):
        km.make_student(perceptron(7, 7))


@pytest.mark.one_backend
def test_a_teacher_whose_config_lists_its_layers_is_refused():
    with pytest.raises(ModelError, match="has no layer count to reduce"):
        km.make_student(perceptron(7, 7), depth=0.9)


@pytest.mark.one_backend
def test_a_ratio_of_one_keeps_the_width_of_a_shallower_student():
    teacher = randomized(Net(num_layers=4))
    student = km.make_student(teacher, ratio=1.0, depth=0.5)
    expected = km.make_student(teacher, depth=0.5)
    assert [w.shape for w in student.weights] == [w.shape for w in expected.weights]
    assert student.count_params() < teacher.count_params()
    with pytest.raises(ConfigError, match="ratio"):
        km.make_student(teacher, ratio=1.0)
