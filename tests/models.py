"""Small models of every kind, for tests that must hold for all of them."""

from dataclasses import dataclass

import keras
import numpy as np

from kerasmem.compression.recipe import apply_technique
from kerasmem.compression.technique import Context
from kerasmem.graph.clone import reloaded

L = keras.layers


@keras.saving.register_keras_serializable("tests")
class LazyBlock(L.Layer):
    """A custom layer without `build`: its parts are built in its first call."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dense = L.Dense(units)

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("tests")
class Experts(L.Layer):
    """A mixture: each row is what all experts make of it, in a router's shares."""

    def __init__(self, count, width, **kwargs):
        super().__init__(**kwargs)
        self.count = count
        self.width = width
        self.router = L.Dense(count, activation="softmax")

    def build(self, input_shape):
        self.router.build(input_shape)
        size = input_shape[-1]
        self.up = self.add_weight((self.count, size, self.width), name="up")
        self.down = self.add_weight((self.count, self.width, size), name="down")

    def call(self, x):
        ops = keras.ops
        hidden = ops.relu(ops.einsum("bti,eio->ebto", x, self.up))
        made = ops.matmul(hidden, self.down[:, None])
        return ops.einsum("ebti,bte->bti", made, self.router(x))

    def get_config(self):
        return {**super().get_config(), "count": self.count, "width": self.width}


@keras.saving.register_keras_serializable("tests")
class ScaledEmbedding(L.Embedding):
    """A table that does more with its rows than to look them up."""

    def call(self, inputs):
        return 8.0 * super().call(inputs)


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    """A model without a graph."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = L.Embedding(11, 8)
        self.lstm = L.LSTM(5)
        self.head = L.Dense(3)

    def call(self, x):
        return self.head(self.lstm(self.embedding(x)))


@keras.saving.register_keras_serializable("tests")
class OfTwoInputs(keras.Model):
    """A model without a graph, of images and what is known of each.

    Args:
        form: of the inputs, `"dict"`, `"list"`, `"tuple"` or `"nested"`.
    """

    def __init__(self, form="dict", **kwargs):
        super().__init__(**kwargs)
        self.form = form
        self.of_image, self.of_meta = L.Dense(64, activation="relu"), L.Dense(64)
        self.add, self.head = L.Add(), L.Dense(3)

    def joined(self, image, meta):
        """Return how two inputs become the form that the model takes."""
        return {
            "dict": {"picture": image, "meta": meta},
            "list": [image, meta],
            "tuple": (image, meta),
            "nested": {"pictures": [image], "meta": meta},
        }[self.form]

    def call(self, inputs):
        if self.form == "dict":
            image, meta = inputs["picture"], inputs["meta"]
        elif self.form == "nested":
            image, meta = inputs["pictures"][0], inputs["meta"]
        else:
            image, meta = inputs
        return self.head(self.add([self.of_image(image), self.of_meta(meta)]))

    def get_config(self):
        return {**super().get_config(), "form": self.form}


@keras.saving.register_keras_serializable("tests")
class BuiltByConstructor(keras.Model):
    """A model with inputs and outputs, made of arguments of its own."""

    def __init__(self, units=8, inner=None, **kwargs):
        inputs = keras.Input((6,))
        x = L.Dense(units, activation="relu", name="first")(inputs)
        x = L.Dense(6, name="middle")(x)
        if inner is not None:
            x = inner(x)
        super().__init__(inputs, L.Dense(6, name="last")(x), **kwargs)
        self.units, self.inner = units, inner

    def get_config(self):
        inner = self.inner and keras.saving.serialize_keras_object(self.inner)
        own = {"units": self.units, "inner": inner}
        return {**own, "name": self.name, "trainable": self.trainable}

    @classmethod
    def from_config(cls, config):
        inner = config["inner"]
        inner = inner and keras.saving.deserialize_keras_object(inner)
        return cls(**{**config, "inner": inner})


def chain(shape, *layers, dtype="float32"):
    inputs = x = keras.Input(shape, dtype=dtype)
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x)


def attention(layer):
    inputs = keras.Input((5, 8))
    x = layer(inputs, inputs)
    return keras.Model(inputs, L.Add()([x, inputs]))


def shared():
    inputs = keras.Input((6,))
    dense = L.Dense(6)
    return keras.Model(inputs, dense(dense(inputs)))


def nested():
    inner = keras.Sequential([keras.Input((6, 6, 3)), L.Conv2D(4, 3)])
    return chain((6, 6, 3), inner, L.GlobalAveragePooling2D(), L.Dense(3))


def tied():
    inputs = keras.Input((5,), dtype="int32")
    table = L.ReversibleEmbedding(11, 8)
    return keras.Model(inputs, table(table(inputs), reverse=True))


def subclassed():
    model = Subclassed()
    model(np.zeros((1, 5), "int32"))
    return model


@dataclass(frozen=True)
class Kind:
    """A kind of model: how to make one, how many kernels it has, what it takes."""

    make: object
    kernels: int
    shape: tuple
    integers: bool = False

    def inputs(self, seed=0):
        random = np.random.default_rng(seed)
        if self.integers:
            return random.integers(0, 11, (3, *self.shape)).astype("int32")
        return random.normal(size=(3, *self.shape)).astype("float32")


def _einsum(equation, shape, bias):
    return L.EinsumDense(equation, output_shape=shape, bias_axes=bias)


KINDS = {
    "dense": Kind(lambda: chain((7,), L.Dense(4)), 1, (7,)),
    "einsum_dense": Kind(
        lambda: chain((5, 7), _einsum("abc,cde->abde", (None, 2, 3), "de")), 1, (5, 7)
    ),
    "conv1d": Kind(
        lambda: chain((9, 3), L.Conv1D(4, 3), L.Conv1DTranspose(5, 3, strides=2)),
        2,
        (9, 3),
    ),
    "conv2d": Kind(
        lambda: chain((8, 8, 4), L.Conv2D(6, 3, groups=2), L.Conv2DTranspose(5, 3)),
        2,
        (8, 8, 4),
    ),
    "conv3d": Kind(
        lambda: chain((4, 4, 4, 2), L.Conv3D(3, 2), L.Conv3DTranspose(4, 2)),
        2,
        (4, 4, 4, 2),
    ),
    "depthwise_1d": Kind(
        lambda: chain((9, 3), L.DepthwiseConv1D(3), L.SeparableConv1D(6, 3)), 3, (9, 3)
    ),
    "depthwise_2d": Kind(
        lambda: chain(
            (7, 7, 3),
            L.DepthwiseConv2D(3, depth_multiplier=2),
            L.SeparableConv2D(6, 3),
        ),
        3,
        (7, 7, 3),
    ),
    "recurrent": Kind(
        lambda: chain(
            (5,),
            L.Embedding(11, 6, mask_zero=True),
            L.LSTM(4, return_sequences=True),
            L.GRU(3, return_sequences=True),
            L.SimpleRNN(4),
            dtype="int32",
        ),
        7,
        (5,),
        integers=True,
    ),
    "embedding_subclass": Kind(
        lambda: chain((5,), ScaledEmbedding(11, 6), dtype="int32"),
        1,
        (5,),
        integers=True,
    ),
    "tied_embedding": Kind(tied, 1, (5,), integers=True),
    "bidirectional": Kind(
        lambda: chain((5, 6), L.Bidirectional(L.LSTM(4, dropout=0.2))), 4, (5, 6)
    ),
    "stacked_cells": Kind(
        lambda: chain((5, 6), L.RNN([L.LSTMCell(4), L.GRUCell(3)])), 4, (5, 6)
    ),
    "conv_lstm": Kind(lambda: chain((3, 5, 5, 2), L.ConvLSTM2D(3, 3)), 2, (3, 5, 5, 2)),
    "time_distributed": Kind(
        lambda: chain((5, 6), L.TimeDistributed(L.Dense(4, activation="relu"))),
        1,
        (5, 6),
    ),
    "attention": Kind(lambda: attention(L.MultiHeadAttention(2, 3)), 4, (5, 8)),
    "grouped_attention": Kind(
        lambda: attention(L.GroupQueryAttention(4, 4, 2)), 4, (5, 8)
    ),
    "spectral_normalization": Kind(
        lambda: chain((6,), L.SpectralNormalization(L.Dense(4))), 1, (6,)
    ),
    "activation_layer_inside": Kind(
        lambda: chain((6,), L.Dense(5, activation=L.ReLU())), 1, (6,)
    ),
    "shared": Kind(shared, 1, (6,)),
    "nested": Kind(nested, 2, (6, 6, 3)),
    "experts": Kind(lambda: chain((5, 6), Experts(3, 8)), 3, (5, 6)),
    "custom": Kind(lambda: chain((6,), LazyBlock(5)), 1, (6,)),
    "subclassed": Kind(subclassed, 4, (5,), integers=True),
}


ORIGINS = ("fresh", "cloned", "reloaded")
"""Where a model comes from: from a file its calls have lists in place of tuples."""


def from_origin(model, origin):
    """Return the model as it is, as Keras clones it, or as a file gives it back."""
    if origin == "fresh":
        return model
    if origin == "reloaded":
        return reloaded(model)
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    return copy


def in_place(technique, model, data=None):
    """Apply a technique to a model that the test owns; return what became of it."""
    result, changes = apply_technique(technique, model, Context(data, owned=True))
    assert result is model
    return changes


class Counting(L.Layer):
    """Counts its calls, and adds noise."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1)

    def build(self, _):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign(self.calls + 1)
        return x + keras.random.normal(keras.ops.shape(x), seed=self.seeds)
