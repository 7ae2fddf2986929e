"""Small models of every kind that can be computed again."""

import keras
import numpy as np

L = keras.layers


@keras.saving.register_keras_serializable("remat")
class Noisy(L.Layer):
    """Assigns a variable, draws random numbers, adds a loss; has no `training`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dropout = L.Dropout(0.5, seed=3)

    def build(self, shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.seen.assign_add(1.0)
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return self.dropout(x) + self.seen


class Block(L.Layer):
    """A block of an encoder, which takes no `training` but has dropout."""

    def build(self, shape):
        self.norm, self.dropout = L.LayerNormalization(), L.Dropout(0.3, seed=3)
        self.widen, self.narrow = L.Dense(12, "gelu"), L.Dense(4)
        self.norm.build(shape)
        self.widen.build(shape)
        self.narrow.build((*shape[:-1], 12))

    def call(self, x):
        return x + self.dropout(self.narrow(self.widen(self.norm(x))))


@keras.saving.register_keras_serializable("remat")
class Encoder(L.Layer):
    """All blocks of a model within one layer, which trains otherwise than it infers."""

    def __init__(self, adds_a_loss=False, **kwargs):
        super().__init__(**kwargs)
        self.adds_a_loss = adds_a_loss
        self.blocks = [Block() for _ in range(4)]

    def build(self, x_shape, scale_shape):
        self.bias = self.add_weight(shape=x_shape[1:], name="bias")
        for one in self.blocks:
            one.build(x_shape)

    def call(self, x, scale, training=None):
        x = x * scale if training else x
        x = x + self.bias
        for one in self.blocks:
            x = one(x)
        if self.adds_a_loss:
            self.add_loss(keras.ops.mean(keras.ops.square(x)))
        return x

    def get_config(self):
        return {**super().get_config(), "adds_a_loss": self.adds_a_loss}


@keras.saving.register_keras_serializable("remat")
class Masked(Encoder):
    """An encoder that Keras hands a mask."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x, scale, x_mask=None, training=None):
        if x_mask is not None:
            x = x * keras.ops.cast(x_mask, x.dtype)[..., None]
        return super().call(x, scale, training)


@keras.saving.register_keras_serializable("remat")
class Scaled(Encoder):
    """An encoder that computes with a weight alone."""

    def call(self, x, scale, training=None):
        return super().call(x * keras.ops.exp(self.bias), scale, training)


@keras.saving.register_keras_serializable("remat")
class Reshaped(Encoder):
    """An encoder that computes with the batch size, which symbols do not have."""

    def call(self, x, scale, training=None):
        size, length, channels = keras.ops.shape(x)
        x = keras.ops.reshape(x, (size, length * channels))
        x = keras.ops.reshape(x, (size, -1, channels))
        return super().call(x, scale, training)


@keras.saving.register_keras_serializable("remat")
class Ramped(Encoder):
    """An encoder that adds along the axis before the last one, which is as long."""

    def call(self, x, scale, training=None):
        ramp = keras.ops.arange(x.shape[1], dtype=x.dtype)[None, :, None]
        x = keras.ops.concatenate([x, x[..., :1]], axis=-1) + ramp
        return super().call(x[..., :-1], scale, training)


def block(x, filters):
    y = L.Conv2D(filters, 3, padding="same")(x)
    y = L.BatchNormalization()(y)
    y = L.Dropout(0.2, seed=filters)(L.ReLU()(y))
    return L.Add()([x, y]) if x.shape[-1] == filters else y


def cnn():
    x = inputs = keras.Input((6, 6, 3))
    for _ in range(2):
        x = block(x, 4)
    return keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))


def mlp():
    dense = [L.Dense(6, activation="relu") for _ in range(6)]
    return keras.Sequential([keras.Input((6,)), *dense, L.Dense(2)])


def recurrent():
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            L.Embedding(9, 4, mask_zero=True),
            L.LSTM(4, return_sequences=True, seed=1),
            L.Dropout(0.3, seed=1),
            L.LSTM(3, seed=3),
            L.Dense(2),
        ]
    )


def attention():
    x = inputs = keras.Input((5, 4))
    for number in range(2):
        y = L.LayerNormalization()(x)
        y = L.MultiHeadAttention(2, 2, dropout=0.1, seed=number)(
            y, y, use_causal_mask=True
        )
        x = L.Add()([x, y])
        y = L.Dense(4)(L.Dense(8, activation="gelu")(L.LayerNormalization()(x)))
        x = x + y
    return keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling1D()(x)))


def losses():
    dense = L.Dense(5, activation="tanh", activity_regularizer="l2")
    x = inputs = keras.Input((5,))
    x = Noisy()(dense(dense(x)))
    x = L.Dense(5, kernel_regularizer="l2", activation="relu")(x)
    return keras.Model(inputs, L.Dense(2)(Noisy()(x)))


def nested():
    backbone = cnn()
    inputs = keras.Input((6, 6, 3))
    small = keras.Sequential([keras.Input((2,)), L.Dense(4, "relu"), L.Dense(2)])
    return keras.Model(inputs, small(small(backbone(inputs / 2.0))))


def several():
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    x = L.Dense(5, "relu")(a)
    y = L.Dense(5, "relu")(b)
    for _ in range(3):
        x, y = L.Dense(5, "relu")(x + y), L.Dense(5, "tanh")(x * y)
    return keras.Model({"a": a, "b": b}, {"p": L.Dense(2)(x), "q": L.Dense(2)(y)})


def frozen():
    x = inputs = keras.Input((6,))
    for _ in range(4):
        x = L.BatchNormalization()(L.Dense(6, "tanh")(x))
    model = keras.Model(inputs, x)
    for layer in model.layers[:4]:
        layer.trainable = False
    return model


def encoder(kind=Encoder, **options):
    inputs = keras.Input((5, 4))
    scale = L.Dense(1, "sigmoid")(inputs)
    x = L.Masking()(inputs) if kind is Masked else inputs
    x = kind(**options)(x, scale=scale)
    return keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling1D()(x)))


MAKERS = [cnn, mlp, recurrent, attention, losses, nested, several, frozen, encoder]


OWN_WAYS = [Masked, Scaled, Reshaped, Ramped]
"""Layers whose `call` symbols would not stand for."""


def batch(model, size=4):
    """Return a batch that the model takes."""
    random = np.random.default_rng(0)

    def one(x):
        shape = (size, *x.shape[1:])
        if x.dtype == "int32":
            return random.integers(0, 9, shape).astype("int32")
        return random.normal(size=shape).astype("float32")

    structure = model._functional if isinstance(model, keras.Sequential) else model
    x = keras.tree.map_structure(one, structure.input)
    y = keras.tree.map_structure(
        lambda t: random.normal(size=(size, *t.shape[1:])).astype("float32"),
        structure.output,
    )
    return x, y
