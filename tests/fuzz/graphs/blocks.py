"""Steps that are blocks of several layers and functions, as real models have them."""

import keras
from keras import ops

L = keras.layers


def _qkv(d, x):
    steps, heads, size = x.shape[1], d.size(1, 2), d.size(1, 3)
    every = ops.reshape(L.Dense(3 * heads * size)(x), (-1, steps, 3, heads, size))
    every = ops.transpose(every, (2, 0, 3, 1, 4))
    scores = ops.matmul(every[0], ops.swapaxes(every[1], -1, -2))
    y = ops.einsum("bhqk,bhkd->bqhd", ops.softmax(scores), every[2])
    return ops.reshape(y, (-1, steps, heads * size))


def _halves(d, x):
    left, right = ops.split(L.Dense(2 * d.size(1, 4))(x), 2, axis=-1)
    return left * ops.sigmoid(right)


def _shuffle(d, x):
    inner = x.shape[1:-1]
    parts = ops.reshape(L.Dense(6)(x), (-1, *inner, 2, 3))
    return ops.reshape(ops.swapaxes(parts, -1, -2), (-1, *inner, 6))


def _residual(d, x):
    y = L.Dense(d.size(2, 8), activation="relu")(x)
    return L.Add()([x, L.Dense(x.shape[-1])(y)])


def _normed(d, x):
    """The pair that folding is about."""
    names = ["Dense"]
    names += {2: ["Conv1D"], 3: ["Conv2D", "DepthwiseConv2D"], 4: ["Conv3D"]}.get(
        len(x.shape) - 1, []
    )
    name = d.choice(names)
    first = {"Dense": (d.size(1, 6),), "DepthwiseConv2D": (2,)}.get(
        name, (d.size(1, 6), 2)
    )
    more = {} if name == "Dense" else {"padding": d.choice(("same", "valid"))}
    y = getattr(L, name)(*first, use_bias=d.flag(), **more)(x)
    y = L.BatchNormalization()(y)
    return L.Activation(d.choice(("relu", "relu6", "linear", "hard_silu")))(y)


def _squeeze_excite(d, x):
    c = x.shape[-1]
    gate = L.Dense(c, activation="sigmoid")(L.GlobalAveragePooling2D()(x))
    return L.Multiply()([x, L.Reshape((1, 1, c))(gate)])


def _outer(d, x):
    return L.Dense(d.size(1, 4))(x)[..., None, :] * L.Dense(2)(x)[..., None]


BLOCKS = {
    "qkv": (_qkv, (2,)),
    "halves": (_halves, (1, 2, 3)),
    "shuffle": (_shuffle, (1, 2, 3)),
    "residual": (_residual, (1, 2, 3)),
    "normed": (_normed, (1, 2, 3, 4)),
    "squeeze_excite": (_squeeze_excite, (3,)),
    "outer": (_outer, (1, 2)),
}
"""What makes each, and the axes beside the batch that it takes."""
