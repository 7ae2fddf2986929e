"""Random functional graphs of every operation whose channels are known."""

import keras
import numpy as np
from hypothesis import strategies as st
from keras import ops

from kerasmem.graph.values import to_numpy

L = keras.layers

NAMED = {"relu", "tanh", "gelu", "sigmoid", "linear", "silu", "softmax"}


def _conv(n):
    return {
        f"conv{n}d": lambda x, c, k: getattr(L, f"Conv{n}D")(
            c(1, 7), c(1, 3), padding="same", activation=k(NAMED)
        )(x),
        f"conv{n}d_transpose": lambda x, c, k: getattr(L, f"Conv{n}DTranspose")(
            c(1, 7), c(1, 3), padding="same"
        )(x),
        f"conv{n}d_full_groups": lambda x, c, k: getattr(L, f"Conv{n}D")(
            x.shape[-1] * c(1, 2), 3, padding="same", groups=x.shape[-1]
        )(x),
        f"conv{n}d_groups": lambda x, c, k: getattr(L, f"Conv{n}D")(
            2 * c(1, 4), 3, padding="same", groups=2
        )(getattr(L, f"Conv{n}D")(2 * c(1, 4), 1)(x)),
        f"pool{n}d": lambda x, c, k: getattr(
            L, k({"MaxPooling", "AveragePooling"}) + f"{n}D"
        )(2, strides=1, padding="same")(x),
        f"crop_and_pad{n}d": lambda x, c, k: getattr(L, f"Cropping{n}D")(1)(
            getattr(L, f"ZeroPadding{n}D")(1)(x)
        ),
        f"up_sampling{n}d": lambda x, c, k: getattr(L, f"MaxPooling{n}D")(2)(
            getattr(L, f"UpSampling{n}D")(2)(x)
        ),
        f"spatial_dropout{n}d": lambda x, c, k: getattr(L, f"SpatialDropout{n}D")(0.5)(
            x
        ),
    }


def _depthwise(n):
    return {
        f"depthwise{n}d": lambda x, c, k: getattr(L, f"DepthwiseConv{n}D")(
            3, padding="same", depth_multiplier=c(1, 2)
        )(x),
        f"separable{n}d": lambda x, c, k: getattr(L, f"SeparableConv{n}D")(
            c(1, 7), 3, padding="same", depth_multiplier=c(1, 2)
        )(x),
    }


def _split(x, c, k):
    cut = c(1, x.shape[-1] - 1) if x.shape[-1] > 1 else 1
    parts = ops.split(x, [cut], axis=-1) if x.shape[-1] > 1 else [x, x]
    return ops.concatenate([parts[1], parts[0]], axis=-1)


def _halves(x, c, k):
    wide = L.Dense(2 * c(1, 5))(x)
    left, right = ops.split(wide, 2, axis=-1)
    return left * ops.sigmoid(right)


def _items(x, c, k):
    cut = c(1, x.shape[-1])
    return ops.concatenate([x[..., :cut], x[..., cut - 1 :]], axis=-1)


def _shuffle(x, c, k):
    wide = L.Dense(6)(x)
    inner = (-1, *x.shape[1:-1])
    parts = ops.reshape(wide, (*inner, 2, 3))
    rank = len(x.shape)
    swapped = ops.transpose(parts, (*range(rank - 1), rank, rank - 1))
    return ops.reshape(swapped, (*inner, 6))


def _qkv(x, c, k):
    steps, heads, dims = x.shape[1], c(1, 3), c(1, 3)
    every = ops.reshape(L.Dense(3 * heads * dims)(x), (-1, steps, 3, heads, dims))
    every = ops.transpose(every, (2, 0, 3, 1, 4))
    scores = ops.matmul(every[0], ops.swapaxes(every[1], -1, -2))
    y = ops.einsum("bhqk,bhkd->bqhd", ops.softmax(scores), every[2])
    return ops.reshape(y, (-1, steps, heads * dims))


def _heads(x, c, k):
    heads, dims = c(1, 3), c(1, 3)
    y = L.EinsumDense("btc,chd->bthd", (x.shape[1], heads, dims), bias_axes="hd")(x)
    y = L.Activation("relu")(y)
    return L.EinsumDense("bthd,hdo->bto", (x.shape[1], c(1, 6)), bias_axes="o")(y)


def _head_biases(x, c, k):
    layer = L.EinsumDense("btc,chd->bthd", (x.shape[1], 3, 4), bias_axes=k({"h", "d"}))
    return ops.reshape(layer(x), (-1, x.shape[1], 12))


def _prelu(x, c, k):
    axes = list(range(1, len(x.shape) - 1))
    return L.PReLU(shared_axes=axes if k({True, False}) else None)(x)


ANY = {
    "dense": lambda x, c, k: L.Dense(c(1, 8), activation=k(NAMED))(x),
    "activation": lambda x, c, k: L.Activation(k(NAMED))(x),
    "relu": lambda x, c, k: L.ReLU()(x),
    "leaky": lambda x, c, k: L.LeakyReLU()(x),
    "prelu": _prelu,
    "batch_norm": lambda x, c, k: L.BatchNormalization()(x),
    "layer_norm": lambda x, c, k: L.LayerNormalization()(x),
    "rms_norm": lambda x, c, k: L.RMSNormalization()(x),
    "group_norm": lambda x, c, k: L.GroupNormalization(
        k({1, -1, x.shape[-1]} | ({2} if x.shape[-1] % 2 == 0 else set()))
    )(x),
    "dropout": lambda x, c, k: L.Dropout(0.3)(x),
    "noise": lambda x, c, k: L.GaussianNoise(0.1)(x),
    "scale": lambda x, c, k: L.Rescaling(0.5)(x) + 0.25,
    "split": _split,
    "halves": _halves,
    "items": _items,
    "take": lambda x, c, k: ops.take(x, [c(0, x.shape[-1] - 1), 0], axis=-1),
    "take_pairs": lambda x, c, k: ops.max(
        ops.take(L.Dense(4)(x), ((0, 1), (2, 3)), axis=-1), -1
    ),
    "new_axis": lambda x, c, k: x[:, None, ...][:, 0],
    "shuffle": _shuffle,
    "twice": lambda x, c, k: L.Concatenate()([x, x]),
    "flip": lambda x, c, k: ops.flip(x, axis=-1),
    "tile": lambda x, c, k: ops.tile(x, (*(1,) * (len(x.shape) - 1), 2)),
    "pad": lambda x, c, k: ops.pad(x, (*((0, 0),) * (len(x.shape) - 1), (1, 0))),
    "gate": lambda x, c, k: x * L.Dense(1, activation="sigmoid")(x),
    "over_channels": lambda x, c, k: x * ops.mean(x, axis=-1, keepdims=True),
    "stack": lambda x, c, k: ops.mean(ops.stack([x, ops.tanh(x)], 1), 1),
    "expand": lambda x, c, k: ops.max(ops.expand_dims(x, 2), 2),
    "squeeze": lambda x, c, k: ops.squeeze(ops.expand_dims(x, 1), 1),
    "residual": lambda x, c, k: L.Add()([x, L.Dense(x.shape[-1])(x)]),
    "merge": lambda x, c, k: getattr(
        L, k({"Maximum", "Minimum", "Average", "Subtract", "Multiply"})
    )()([x, L.Dense(x.shape[-1], activation="tanh")(x)]),
    "unknown": lambda x, c, k: ops.cumsum(x, axis=-1),
}
SEQUENCE = {
    **_conv(1),
    **_depthwise(1),
    "lstm": lambda x, c, k: L.LSTM(c(1, 5), return_sequences=True)(x),
    "gru": lambda x, c, k: L.GRU(c(1, 5), return_sequences=True)(x),
    "rnn": lambda x, c, k: L.SimpleRNN(c(1, 5), return_sequences=True)(x),
    "both_ways": lambda x, c, k: L.Bidirectional(
        L.GRU(c(1, 4), return_sequences=True),
        merge_mode=k({"concat", "sum", "mul", "ave"}),
    )(x),
    "attention": lambda x, c, k: L.MultiHeadAttention(c(1, 3), c(1, 4))(x, x),
    "grouped_attention": lambda x, c, k: L.GroupQueryAttention(c(1, 4), 4, 2)(x, x),
    "plain_attention": lambda x, c, k: L.Attention()([x, L.Dense(x.shape[-1])(x)]),
    "heads": _heads,
    "head_biases": _head_biases,
    "token": lambda x, c, k: L.RepeatVector(x.shape[1])(x[:, c(0, x.shape[1] - 1)]),
    "later": lambda x, c, k: ops.concatenate([x[:, 1:], x[:, :1]], axis=1),
    "qkv": _qkv,
    "every_step": lambda x, c, k: L.TimeDistributed(L.Dense(c(1, 6)))(x),
    "permute": lambda x, c, k: L.Permute((2, 1))(L.Permute((2, 1))(x)),
    "dot": lambda x, c, k: L.Dot((2, 1))([L.Dense(x.shape[1])(x), L.Dense(c(1, 6))(x)]),
    "longer": lambda x, c, k: ops.concatenate([x, ops.tanh(x)], axis=1)[:, ::2],
    "steps": lambda x, c, k: x + L.GlobalAveragePooling1D(keepdims=True)(x),
}
IMAGE = {
    **_conv(2),
    **_depthwise(2),
    "squeeze": lambda x, c, k: (
        x
        * L.Reshape((1, 1, x.shape[-1]))(
            L.Dense(x.shape[-1], activation="sigmoid")(L.GlobalAveragePooling2D()(x))
        )
    ),
    "pixels": lambda x, c, k: L.Reshape(x.shape[1:])(
        L.Dense(x.shape[-1])(L.Reshape((-1, x.shape[-1]))(x))
    ),
}
VOLUME = _conv(3)
VECTOR = {
    "widen": lambda x, c, k: L.GlobalMaxPooling1D()(L.RepeatVector(2)(x)),
    "unflatten": lambda x, c, k: L.Flatten()(
        L.Conv2DTranspose(2, 2)(L.Reshape((2, 2, 3))(L.Dense(12)(x)))
    ),
}
SHAPES = {
    "image": ((4, 4, 3), IMAGE),
    "sequence": ((4, 5), SEQUENCE),
    "tokens": ((4,), SEQUENCE),
    "volume": ((2, 2, 2, 3), VOLUME),
    "vector": ((6,), VECTOR),
}


PLANS = st.lists(st.integers(0, 999), min_size=60, max_size=60)
"""Choices to make a model by: Keras draws seeds, which no strategy may do."""


def graph(plan, most=6):
    """Return the model of a plan, with random weights, and what it is made of."""
    choices = iter([*plan, *[0] * 200])

    def number(low, high):
        return low + next(choices) % (high - low + 1)

    def one_of(names):
        return sorted(names, key=str)[next(choices) % len(names)]

    kind = one_of(SHAPES)
    shape, own = SHAPES[kind]
    dtype = "int32" if kind == "tokens" else "float32"
    inputs = keras.Input(shape, dtype=dtype)
    x = L.Embedding(5, number(2, 6))(inputs) if dtype == "int32" else inputs
    x = L.Dense(number(2, 8))(x)
    names, known = [kind], [x]
    operations = ANY | own
    for _ in range(number(1, most)):
        name = one_of(operations)
        x = operations[name](x, number, one_of)
        if name not in {"longer"} and one_of({"go on", "join"}) == "join":
            fitting = [y for y in known if y.shape[:-1] == x.shape[:-1]]
            x = (
                L.Concatenate()([x, fitting[number(0, len(fitting) - 1)]])
                if (fitting)
                else x
            )
        if x.shape[-1] > 16:
            x = L.Dense(number(2, 8))(x)
        names.append(name)
        known.append(x)
    if len(x.shape) > 2 and one_of({"flatten", "pool"}) == "flatten":
        x = L.Flatten()(x)
    model = keras.Model(inputs, L.Dense(2)(x))
    randomize(model, number(0, 99))
    return model, names


def randomize(model, seed=0):
    """Give every weight a random part, so that a mix-up of channels shows."""
    random = np.random.default_rng(seed)
    for variable in model.weights:
        value = to_numpy(variable)
        noise = random.uniform(0.1, 0.5, value.shape) * random.choice(
            [1.0] if "variance" in variable.path else [-1.0, 1.0], value.shape
        )
        variable.assign(value + noise)
