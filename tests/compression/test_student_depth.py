"""A student with fewer blocks than its teacher, and the weights of those it keeps."""

import keras
import numpy as np
import pytest
from keras import layers

import kerasmem as km
from kerasmem.compression.student import repeated
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


def residual(blocks):
    inputs = keras.Input((8, 8, 2))
    x = inputs
    for stage, width in enumerate((4, 6)):
        for block in range(blocks):
            strides = 2 if stage and not block else 1
            y = layers.Conv2D(width, 3, strides, padding="same", activation="relu")(x)
            y = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(y))
            if not block:
                x = layers.Conv2D(width, 1, strides)(x)
            x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(3)(x))


def encoder(count):
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(11, 8)(inputs)
    for _ in range(count):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 4)(y, y)])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(8)(layers.Dense(16, activation="gelu")(y))
        x = x + y
    x = layers.LayerNormalization()(x)
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


def strides(size):
    body = [layers.Conv2D(4, 3, 2, padding="same") for _ in range(3)]
    head = [layers.GlobalAveragePooling2D(), layers.Dense(2)]
    return keras.Sequential([keras.Input((size, size, 4)), *body, *head])


def kinds(model, kind):
    return [layer for layer in model.layers if isinstance(layer, kind)]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: perceptron(7, 7, 7, 7, activation=False), [3]),
        (lambda: perceptron(7, 7, 7), [2]),
        (lambda: perceptron(9, 7, 7, 5, 5, 5), [1, 2]),
        (lambda: residual(3), [2, 2]),
        (lambda: residual(2), [1, 1]),
        (lambda: encoder(3), [3]),
        (lambda: perceptron(9, 7, 5), []),
        (lambda: perceptron(3, 3, activation=False), [1]),  # and the outputs stay
        (lambda: strides(None), []),
        (lambda: strides(32), []),
    ],
)
def test_the_parts_that_repeat_each_other_are_found(model, expected):
    assert [len(parts) for parts in repeated(model())] == expected


def test_half_of_an_encoder_keeps_the_weights_of_every_second_block():
    teacher = encoder(4)
    student = km.make_student(teacher, depth=0.5)
    assert len(kinds(student, layers.MultiHeadAttention)) == 2
    names = [layer.name for layer in kinds(student, layers.MultiHeadAttention)]
    of_teacher = [layer.name for layer in kinds(teacher, layers.MultiHeadAttention)]
    assert names == [of_teacher[1], of_teacher[3]]
    for layer in student.layers:
        for new, old in zip(
            layer.get_weights(),
            teacher.get_layer(layer.name).get_weights(),
            strict=True,
        ):
            np.testing.assert_array_equal(new, old)


def test_what_is_left_computes_what_the_teacher_would_without_the_block():
    teacher = residual(2)
    x = np.random.default_rng(0).normal(size=(4, 8, 8, 2)).astype("float32")
    student = km.make_student(teacher, depth=0)
    # A residual block whose second branch gives zero hands on what came in.
    norms = kinds(teacher, layers.BatchNormalization)
    for norm in (norms[1], norms[3]):
        norm.gamma.assign(norm.gamma * 0)
    np.testing.assert_allclose(
        np.array(student.predict(x, verbose=0)),
        np.array(teacher.predict(x, verbose=0)),
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_student_of_a_sequential_is_one_and_trains():
    teacher = perceptron(7, 7, 7)
    before = teacher.get_weights()
    student = km.make_student(teacher, 0.8, depth=0.5)
    assert isinstance(student, keras.Sequential)
    assert len(kinds(student, layers.Dense)) == 3
    x, y = np.ones((4, 6), "float32"), np.ones((4, 3), "float32")
    student.fit(x, y, verbose=0)
    for now, then in zip(teacher.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


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
@pytest.mark.parametrize("model", [perceptron(9, 7, 5), perceptron(7, 7)])
def test_a_teacher_without_parts_to_spare_is_refused(model):
    with pytest.raises(ModelError, match="it has [01] removable repeated blocks"):
        km.make_student(model, depth=0.9)


def test_a_ratio_of_one_keeps_the_width_of_a_shallower_student():
    teacher = perceptron(*[16] * 6)
    student = km.make_student(teacher, ratio=1.0, depth=0.5)
    expected = km.make_student(teacher, depth=0.5)
    assert [w.shape for w in student.weights] == [w.shape for w in expected.weights]
    assert student.count_params() < teacher.count_params()
    with pytest.raises(ConfigError, match="ratio"):
        km.make_student(teacher, ratio=1.0)
