"""Steps that are one layer of Keras."""

from functools import partial

import keras

from tests.fuzz.graphs.operation import Draw, Operation

L = keras.layers
NAMES = (
    *("relu", "relu6", "tanh", "gelu", "sigmoid", "linear", "silu", "softmax"),
    *("elu", "selu", "softplus", "softsign", "hard_sigmoid", "hard_silu"),
    *("leaky_relu", "mish", "celu", "log_softmax", "exponential"),
)
SMOOTH = ("relu", "tanh", "gelu", "sigmoid", "linear", "silu", None)


def _layer(name, n=""):
    return getattr(L, f"{name}{n}D" if n else name)


def _conv(name, n, d: Draw, x, **more):
    strides = d.choice((1, 1, 1, 2))
    return _layer(name, n)(
        d.size(1, 6),
        d.size(1, 3),
        strides=strides,
        padding=d.choice(("same", "valid")),
        activation=d.choice(SMOOTH),
        use_bias=d.flag(0.8),
        **more,
    )


def _dilated(n, d, x):
    return _layer("Conv", n)(d.size(1, 6), 2, dilation_rate=2, padding="same")


def _groups(n, d, x):
    groups = d.choice([g for g in (1, 2, 3, 4) if x.shape[-1] % g == 0])
    return _layer("Conv", n)(groups * d.size(1, 3), 2, padding="same", groups=groups)


def _depthwise(n, d, x):
    return _layer("DepthwiseConv", n)(
        d.size(1, 3),
        padding=d.choice(("same", "valid")),
        depth_multiplier=d.size(1, 2),
        activation=d.choice(SMOOTH),
        use_bias=d.flag(0.8),
    )


def _separable(n, d, x):
    return _layer("SeparableConv", n)(
        d.size(1, 6), d.size(1, 3), padding="same", depth_multiplier=d.size(1, 2)
    )


def _pool(name, n, d, x):
    strides = d.choice((None, 1, 2))
    return _layer(name, n)(2, strides=strides, padding=d.choice(("same", "valid")))


def _adaptive(n, d, x):
    # To one place TensorFlow's graphs cannot: docs/upstream.md, Keras.
    return _layer("AdaptiveAveragePooling", n)(d.size(2, 3))


def _per_axis(n, d, most=1):
    pairs = [(d.size(0, most), d.size(0, most)) for _ in range(n)]
    return pairs[0] if n == 1 else tuple(pairs)


def _up(n, d, x):
    size = d.size(1, 2)
    return _layer("UpSampling", n)(size if n == 1 else (size,) * n)


def _first(d, x, n):
    """A layer with the channels in front, where every backend's CPU has it."""
    kind = d.choice(("conv", "max", "average", "global", "pad", "crop", "norm"))
    data_format = {"data_format": "channels_first"}
    return {
        "conv": lambda: _layer("Conv", n)(d.size(1, 5), 1, **data_format),
        "max": lambda: _layer("MaxPooling", n)(1, **data_format),
        "average": lambda: _layer("AveragePooling", n)(1, **data_format),
        "global": lambda: _layer("GlobalAveragePooling", n)(**data_format),
        "pad": lambda: _layer("ZeroPadding", n)(1, **data_format),
        "crop": lambda: _layer("Cropping", n)(0, **data_format),
        "norm": lambda: L.BatchNormalization(axis=1),
    }[kind]()


def _batch_norm(d, x):
    axis = d.choice((-1, -1, -1, len(x.shape) - 1, 1))
    return L.BatchNormalization(axis, center=d.flag(0.8), scale=d.flag(0.8))


def _group_norm(d, x):
    groups = [g for g in (1, 2, 3, -1) if g == -1 or x.shape[-1] % g == 0]
    return L.GroupNormalization(d.choice(groups))


def _normalization(d, x):
    c = x.shape[-1]
    return L.Normalization(
        mean=[d.uniform(-1, 1) for _ in range(c)],
        variance=[d.uniform(0.5, 2) for _ in range(c)],
    )


def _recurrent(name, d, x, **more):
    settings = {
        "return_sequences": d.flag(0.6),
        "go_backwards": d.flag(0.15),
        "use_bias": d.flag(0.85),
        **more,
    }
    if name == "GRU":
        settings["reset_after"] = d.flag(0.7)
    return _layer(name)(d.size(1, 5), **settings)


def _both_ways(d, x):
    name = d.choice(("LSTM", "GRU", "SimpleRNN"))
    mode = d.choice(("concat", "concat", "sum", "mul", "ave"))
    return L.Bidirectional(_recurrent(name, d, x, go_backwards=False), merge_mode=mode)


def _cells(d, x):
    cells = [d.choice((L.LSTMCell, L.GRUCell, L.SimpleRNNCell))(d.size(1, 4))]
    cells += [L.LSTMCell(d.size(1, 3))] * d.size(0, 1)
    return L.RNN(cells if len(cells) > 1 else cells[0], return_sequences=d.flag())


def _every_step(d, x):
    inner = [L.Dense(d.size(1, 5), activation=d.choice(SMOOTH)), L.Dropout(0.2)]
    if len(x.shape) > 3:
        inner += [L.Conv1D(d.size(1, 5), 1), L.Flatten()]
    return L.TimeDistributed(d.choice(inner))


def _einsum(d, x):
    rank = len(x.shape) - 1
    left = "abcde"[:rank]
    given = None if rank < 3 else x.shape[2:-1]
    shape = (d.size(1, 6),) if rank == 1 else (x.shape[1], *(given or ()), d.size(1, 6))
    bias = "z" if d.flag(0.7) else None
    return L.EinsumDense(f"{left}y,yz->{left}z", shape, bias_axes=bias)


def _einsum_heads(d, x):
    heads = d.size(1, 3)
    return L.EinsumDense("abc,cde->abde", (x.shape[1], heads, d.size(1, 3)), "relu")


def _einsum_merge(d, x):
    return L.EinsumDense("abcd,cde->abe", (x.shape[1], d.size(1, 6)), bias_axes="e")


def _attend(d, *_):
    return L.MultiHeadAttention(
        d.size(1, 3), d.size(1, 4), value_dim=d.choice((None, 2)), use_bias=d.flag(0.7)
    )


def _reshape(d, x):
    shape = list(x.shape[1:])
    total = _product(shape)
    forms = [(total,), (-1, shape[-1])]
    forms += [(total // k, k) for k in (2, 3, 4) if total % k == 0]
    forms += [(total // (k * k), k, k) for k in (2,) if total % (k * k) == 0]
    return L.Reshape(d.choice(forms))


def _product(shape):
    total = 1
    for size in shape:
        total *= size
    return total


def _permute(d, x):
    axes = list(range(1, len(x.shape)))
    d.shuffle(axes)
    return L.Permute(axes)


def _prelu(d, x):
    axes = list(range(1, len(x.shape) - 1))
    return L.PReLU(shared_axes=axes if d.flag() else None)


def _softmax(d, x):
    return L.Softmax(axis=d.axis(x))


def _concatenate(d, x, y):
    return L.Concatenate(axis=d.choice((-1, -1, d.axis(x))))


def _dot(d, x, y):
    return L.Dot(axes=(2, 2), normalize=d.flag(0.2))


KINDS = {
    "dense": Operation(
        lambda d, x: L.Dense(
            d.size(1, 8), activation=d.choice(SMOOTH), use_bias=d.flag(0.8)
        )
    ),
    "einsum_dense": Operation(_einsum),
    "einsum_heads": Operation(_einsum_heads, (2,)),
    "einsum_merge": Operation(_einsum_merge, (3,)),
    "conv1d_causal": Operation(
        lambda d, x: L.Conv1D(d.size(1, 6), d.size(1, 3), padding="causal"), (2,)
    ),
    "batch_norm": Operation(_batch_norm),
    "layer_norm": Operation(
        lambda d, x: L.LayerNormalization(d.choice((-1, -1, d.axis(x))))
    ),
    "rms_norm": Operation(lambda d, x: L.RMSNormalization()),
    "unit_norm": Operation(lambda d, x: L.UnitNormalization(axis=-1)),
    "group_norm": Operation(_group_norm),
    "normalization": Operation(_normalization),
    "spectral_norm": Operation(
        lambda d, x: L.SpectralNormalization(L.Dense(d.size(1, 5)))
    ),
    "lstm": Operation(partial(_recurrent, "LSTM"), (2,)),
    "gru": Operation(partial(_recurrent, "GRU"), (2,)),
    "simple_rnn": Operation(partial(_recurrent, "SimpleRNN"), (2,)),
    "both_ways": Operation(_both_ways, (2,)),
    "cells": Operation(_cells, (2,)),
    "conv_lstm1d": Operation(lambda d, x: L.ConvLSTM1D(d.size(1, 3), 2), (3,)),
    "conv_lstm2d": Operation(lambda d, x: L.ConvLSTM2D(d.size(1, 3), 1), (4,)),
    "every_step": Operation(_every_step, (2, 3)),
    "attention": Operation(lambda d, x, y: L.Attention(use_scale=d.flag()), (2,), 2),
    "additive_attention": Operation(lambda d, x, y: L.AdditiveAttention(), (2,), 2),
    "multi_head": Operation(_attend, (2,), 2, alike=False),
    "grouped_query": Operation(
        lambda d, x, y: L.GroupQueryAttention(d.size(1, 3), 4, d.choice((1, 2, 4))),
        (2,),
        2,
    ),
    "reshape": Operation(_reshape),
    "flatten": Operation(lambda d, x: L.Flatten(), (2, 3, 4)),
    "flatten_first": Operation(lambda d, x: L.Flatten("channels_first"), (3,)),
    "permute": Operation(_permute, (2, 3, 4)),
    "repeat_vector": Operation(lambda d, x: L.RepeatVector(d.size(1, 3)), (1,)),
    "add": Operation(lambda d, x, y: L.Add(), takes=2),
    "subtract": Operation(lambda d, x, y: L.Subtract(), takes=2),
    "multiply": Operation(lambda d, x, y: L.Multiply(), takes=2),
    "average": Operation(lambda d, x, y: L.Average(), takes=2),
    "maximum": Operation(lambda d, x, y: L.Maximum(), takes=2),
    "minimum": Operation(lambda d, x, y: L.Minimum(), takes=2),
    "concatenate": Operation(_concatenate, takes=2),
    "dot": Operation(_dot, (2,), 2),
    "activation": Operation(lambda d, x: L.Activation(d.choice(NAMES))),
    "relu": Operation(lambda d, x: L.ReLU(d.choice((None, 6.0)), d.choice((0.0, 0.1)))),
    "leaky_relu": Operation(lambda d, x: L.LeakyReLU(0.2)),
    "prelu": Operation(_prelu),
    "elu": Operation(lambda d, x: L.ELU()),
    "softmax": Operation(_softmax),
    "dropout": Operation(lambda d, x: L.Dropout(0.3, seed=d.choice((None, 3)))),
    "gaussian_noise": Operation(lambda d, x: L.GaussianNoise(0.1)),
    "gaussian_dropout": Operation(lambda d, x: L.GaussianDropout(0.1)),
    "alpha_dropout": Operation(lambda d, x: L.AlphaDropout(0.1)),
    "activity": Operation(lambda d, x: L.ActivityRegularization(l2=1e-3)),
    "masking": Operation(lambda d, x: L.Masking(0.0), (2,)),
    "rescaling": Operation(
        lambda d, x: L.Rescaling(d.uniform(0.5, 2), d.uniform(-1, 1))
    ),
    "identity": Operation(lambda d, x: L.Identity()),
}
for n, rank in ((1, 2), (2, 3), (3, 4)):
    own = (rank,)
    KINDS |= {
        f"conv{n}d": Operation(partial(_conv, "Conv", n), own),
        f"conv{n}d_dilated": Operation(partial(_dilated, n), own),
        f"conv{n}d_groups": Operation(partial(_groups, n), own),
        f"conv{n}d_transpose": Operation(partial(_conv, f"Conv{n}DTranspose", ""), own),
        f"max_pool{n}d": Operation(partial(_pool, "MaxPooling", n), own),
        f"average_pool{n}d": Operation(partial(_pool, "AveragePooling", n), own),
        f"adaptive_average{n}d": Operation(partial(_adaptive, n), own),
        f"global_max{n}d": Operation(
            lambda d, x, n=n: _layer("GlobalMaxPooling", n)(keepdims=d.flag()), own
        ),
        f"global_average{n}d": Operation(
            lambda d, x, n=n: _layer("GlobalAveragePooling", n)(keepdims=d.flag()), own
        ),
        f"crop{n}d": Operation(
            lambda d, x, n=n: _layer("Cropping", n)(_per_axis(n, d)), own
        ),
        f"zero_pad{n}d": Operation(
            lambda d, x, n=n: _layer("ZeroPadding", n)(_per_axis(n, d)), own
        ),
        f"up_sample{n}d": Operation(partial(_up, n), own),
        f"spatial_dropout{n}d": Operation(
            lambda d, x, n=n: _layer("SpatialDropout", n)(0.3), own
        ),
        f"channels_first{n}d": Operation(lambda d, x, n=n: _first(d, x, n), own),
    }
    if n < 3:
        KINDS |= {
            f"depthwise{n}d": Operation(partial(_depthwise, n), own),
            f"separable{n}d": Operation(partial(_separable, n), own),
        }
