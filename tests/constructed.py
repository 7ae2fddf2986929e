"""A model of a class of its own that builds it of arguments, blocks and all."""

import keras
from keras import layers, ops


@keras.saving.register_keras_serializable("tests")
class Gate(layers.Layer):
    """The first half of the channels times the sigmoid of the second."""

    def call(self, x):
        value, gate = ops.split(x, 2, axis=-1)
        return value * ops.sigmoid(gate)


@keras.saving.register_keras_serializable("tests")
class Scale(layers.Layer):
    """Channels times a table that is handed in, or else times its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.shared = None

    def build(self, shape):
        if self.shared is None:
            self.table = self.add_weight((shape[-1],), name="table")

    def call(self, x):
        return x * (self.table if self.shared is None else self.shared.table)


_INNER = {
    "gated": Gate,
    "normalized": layers.LayerNormalization,
    "plain": layers.ReLU,
    "smooth": lambda name: layers.Activation("tanh", name=name),
    "shared": Scale,
}


@keras.saving.register_keras_serializable("tests")
class Block(layers.Layer):
    """A residual block with a hidden layer, opaque to a walk through the graph."""

    def __init__(self, intermediate_dim, kind, **options):
        super().__init__(**options)
        self.intermediate_dim, self.kind = intermediate_dim, kind
        width = intermediate_dim * (2 if kind == "gated" else 1)
        self.hidden = layers.Dense(width, "linear", name="hidden")
        self.inner = _INNER[kind](name="inner")
        self.out = layers.Dense(6, name="out")

    def build(self, shape):
        self.hidden.build(shape)
        self.inner.build((None, self.hidden.units))
        self.out.build((None, self.intermediate_dim))

    def call(self, x):
        return x + self.out(self.inner(self.hidden(x)))

    def get_config(self):
        own = {"intermediate_dim": self.intermediate_dim, "kind": self.kind}
        return super().get_config() | own


@keras.saving.register_keras_serializable("tests")
class Net(keras.Model):
    """A model that its constructor builds; its config tells arguments.

    Args:
        num_layers: number of blocks.
        intermediate_dim: hidden units of each.
        kind: what is between the layers of a block; `"alternating"` for ReLU and tanh.
        mlp_dim: hidden units of a last block, over which a normalization goes.
    """

    def __init__(
        self, num_layers=2, intermediate_dim=8, kind="plain", mlp_dim=None, **options
    ):
        x = inputs = keras.Input((6,), name="x")
        first = None
        for number in range(num_layers):
            turn = ("plain", "smooth")[number % 2] if kind == "alternating" else kind
            block = Block(intermediate_dim, turn, name=f"block_{number}")
            if kind == "shared":
                first = first or block
                block.inner.shared = None if block is first else first.inner
            x = block(x)
        if mlp_dim is not None:
            x = Block(mlp_dim, "normalized", name="last")(x)
        super().__init__(inputs, layers.Dense(2, name="head")(x), **options)
        self.num_layers, self.kind = num_layers, kind
        self.intermediate_dim, self.mlp_dim = intermediate_dim, mlp_dim

    def get_config(self):
        names = ("num_layers", "intermediate_dim", "kind", "mlp_dim", "name")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config):
        return cls(**config)
