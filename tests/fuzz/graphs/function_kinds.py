"""Steps that are functions of `keras.ops`."""

import keras
from keras import ops

from tests.fuzz.graphs.blocks import BLOCKS
from tests.fuzz.graphs.operation import Draw, Operation

L = keras.layers
_UNARY = {
    "absolute": ops.abs,
    "square": ops.square,
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
    "sin": ops.sin,
    "cos": ops.cos,
    "negative": ops.negative,
    "silu": ops.silu,
    "erf": ops.erf,
    "exp": lambda x: ops.exp(ops.clip(x, -3, 2)),
    "log": lambda x: ops.log(ops.abs(x) + 1.0),
    "sqrt": lambda x: ops.sqrt(ops.abs(x) + 0.1),
    "rsqrt": lambda x: ops.rsqrt(ops.square(x) + 1.0),
    "reciprocal": lambda x: 1.0 / (ops.abs(x) + 1.0),
    "clip": lambda x: ops.clip(x, -1.0, 1.0),
    "stop_gradient": ops.stop_gradient,
    "nan_to_num": ops.nan_to_num,
    "ones_like": lambda x: x + ops.ones_like(x),
    "zeros_like": lambda x: ops.maximum(x, ops.zeros_like(x)),
    "round": lambda x: ops.round(x * 2.0) + x,
    "sign": lambda x: ops.sign(x) * ops.square(x),
}
_REDUCED = {
    "mean": ops.mean,
    "sum": ops.sum,
    "max": ops.max,
    "min": ops.min,
    "prod": ops.prod,
    "variance": ops.var,
    "standard_deviation": ops.std,
    "logsumexp": ops.logsumexp,
}
_BINARY = {
    "op_add": ops.add,
    "op_subtract": ops.subtract,
    "op_multiply": ops.multiply,
    "op_divide": lambda x, y: ops.divide(x, ops.abs(y) + 1.0),
    "op_maximum": ops.maximum,
    "op_minimum": ops.minimum,
    "op_power": lambda x, y: ops.power(ops.abs(x) + 0.5, ops.tanh(y)),
    "logaddexp": ops.logaddexp,
    "op_where": lambda x, y: ops.where(ops.greater(x, 0.0), x, y),
    "arctan2": lambda x, y: ops.arctan2(x, ops.abs(y) + 1.0),
    "equal": lambda x, y: x * ops.cast(ops.not_equal(x, y), x.dtype),
    "logical": lambda x, y: ops.where(ops.logical_or(x > 0.1, y < 0.3), x, y),
}


def _cut(d: Draw, size, *, step=False):
    start = d.size(0, size - 1)
    stop = d.size(start + 1, size)
    form = d.choice(("both", "start", "stop", "negative"))
    by = d.choice((1, 2, -1)) if step else None
    if by == -1:
        return slice(None, None, -1)
    return {
        "both": slice(start, stop, by),
        "start": slice(start, None, by),
        "stop": slice(None, stop, by),
        "negative": slice(-(size - start), None, by),
    }[form]


def _item_integer(d, x):
    axis = d.size(1, len(x.shape) - 1)
    place = d.size(-x.shape[axis], x.shape[axis] - 1)
    return x[(slice(None),) * axis + (place,)]


def _item_slice(d, x):
    axis = d.size(1, len(x.shape) - 1)
    return x[(slice(None),) * axis + (_cut(d, x.shape[axis]),)]


def _item_ellipsis(d, x):
    return x[..., _cut(d, x.shape[-1])]


def _item_ellipsis_integer(d, x):
    return x[..., d.size(-x.shape[-1], x.shape[-1] - 1)]


def _item_step(d, x):
    axis = d.size(1, len(x.shape) - 1)
    return x[(slice(None),) * axis + (_cut(d, x.shape[axis], step=True),)]


def _item_several(d, x):
    return x[:, _cut(d, x.shape[1]), ..., _cut(d, x.shape[-1])]


def _item_new_axis(d, x):
    return x[:, None] if d.flag() else x[..., None]


def _split(d, x):
    axis = d.axis(x)
    size = x.shape[axis]
    if d.flag() and size > 1:
        left, right = ops.split(x, [d.size(1, size - 1)], axis=axis)
        return ops.concatenate([right, left], axis=axis) if d.flag() else right
    parts = d.choice([n for n in (1, 2, 3) if size % n == 0])
    return sum(ops.split(x, parts, axis=axis))


def _stack(d, x, y):
    return ops.stack([x, y], axis=d.axis(x))


def _unstack(d, x):
    parts = ops.unstack(x, axis=d.axis(x))
    return parts[d.size(0, len(parts) - 1)]


def _transpose(d, x):
    axes = list(range(1, len(x.shape)))
    d.shuffle(axes)
    return ops.transpose(x, (0, *axes))


def _squeeze(d, x):
    return (
        ops.squeeze(ops.expand_dims(x, d.choice((1, -1))) * 2.0, axis=1)
        if (x.shape[1] == 1)
        else ops.squeeze(ops.expand_dims(x, 1), 1)
    )


def _reduced(function):
    def make(d, x):
        axes = d.sample(range(1, len(x.shape)), d.size(1, min(2, len(x.shape) - 1)))
        axis = axes[0] if len(axes) == 1 else tuple(axes)
        y = function(x, axis=axis, keepdims=d.flag())
        return ops.expand_dims(y, -1) if len(y.shape) == 1 else y

    return make


def _over_channels(d, x):
    return x * ops.mean(x, axis=-1, keepdims=True)


def _matmul(d, x, y):
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


def _einsum(d, x, y):
    if len(x.shape) == 2:
        return ops.einsum("bc,bc->b", x, y)[:, None]
    return ops.einsum(d.choice(("btc,bsc->bts", "btc,btd->bcd", "btc,btc->bt")), x, y)


def _pad(d, x):
    pairs = [(0, 0)] + [(d.size(0, 1), d.size(0, 1)) for _ in x.shape[1:]]
    modes = ["constant", "constant"] + ["symmetric"] * (min(x.shape[1:]) > 0)
    mode = d.choice(modes)
    more = {"constant_values": d.choice((None, 0.5))} if mode == "constant" else {}
    return ops.pad(x, pairs, mode=mode, **more)


def _cast(d, x):
    kind = x.dtype
    return ops.cast(ops.cast(x, d.choice(("float16", "bfloat16", "float32"))), kind)


def _tile(d, x):
    return ops.tile(x, (1, *(d.choice((1, 1, 2)) for _ in x.shape[1:])))


def _repeat(d, x):
    return ops.repeat(x, 2, axis=d.axis(x))


def _roll(d, x):
    return ops.roll(x, d.size(-2, 2), axis=d.axis(x))


def _flip(d, x):
    return ops.flip(x, axis=d.axis(x))


def _broadcast(d, x):
    """Something with one entry along some axes, beside the whole."""
    axes = d.sample(range(1, len(x.shape)), d.size(1, len(x.shape) - 1))
    less = ops.mean(x, axis=tuple(axes), keepdims=True)
    return d.choice((ops.add, ops.multiply, ops.subtract, ops.maximum))(x, less)


def _broadcast_lower(d, x):
    """What has fewer axes is set under the last ones."""
    bias = [d.uniform(-1, 1) for _ in range(x.shape[-1])]
    constant = ops.convert_to_tensor(bias, dtype=x.dtype)
    return d.choice((ops.add, ops.multiply))(x, constant)


def _constant(d, x):
    value = d.uniform(0.5, 1.5)
    return d.choice(
        (lambda: x + value, lambda: value - x, lambda: x * value, lambda: x / value)
    )()


def _softmax(d, x):
    return d.choice((ops.softmax, ops.log_softmax))(x, axis=d.axis(x))


def _normalize(d, x):
    return ops.normalize(x, axis=-1, order=2)


def _take(d, x):
    axis = d.axis(x)
    count = d.size(1, 3)
    places = [d.size(0, x.shape[axis] - 1) for _ in range(count)]
    return ops.take(x, places, axis=axis)


def _take_along(d, x):
    places = ops.argsort(x, axis=-1)
    return ops.take_along_axis(x, places, axis=-1)


def _top_k(d, x):
    return ops.top_k(x, d.size(1, min(3, x.shape[-1])))[0]


def _indices(d, x):
    """Channels that become rows of a table."""
    if d.flag():
        places = ops.argmax(x, axis=-1)
        places = ops.expand_dims(places, -1) if len(places.shape) == 1 else places
    else:
        places = ops.cast(ops.clip(ops.abs(x) * 2.0, 0, 4), "int32")
    return L.Embedding(max(6, x.shape[-1]), d.size(1, 3))(places)


def _one_hot(d, x):
    y = ops.one_hot(ops.argmax(x, axis=-1), x.shape[-1], dtype=x.dtype)
    return y * ops.tanh(x)


def _reshape(d, x):
    total = 1
    for size in x.shape[1:]:
        total *= size
    forms = [(-1, total), (-1, 1, total), (-1, *reversed(x.shape[1:]))]
    forms += [(-1, k, total // k) for k in (2, 3) if total % k == 0]
    return ops.reshape(x, d.choice(forms))


def _broadcast_to(d, x):
    return (
        ops.broadcast_to(ops.expand_dims(x, 1), (-1, 2, *x.shape[1:]))
        if (x.shape[0] is not None)
        else ops.concatenate([x, x], axis=d.axis(x))
    )


def _resize(d, x):
    return ops.image.resize(x, (d.size(1, 4), d.size(1, 4)), "bilinear")


def _pooled(d, x):
    return d.choice((ops.max_pool, ops.average_pool))(x, 2, 1, "same")


_ITEMS = {
    "item_integer": (_item_integer, (2, 3, 4)),
    "item_slice": (_item_slice, (1, 2, 3, 4)),
    "item_ellipsis": (_item_ellipsis, (1, 2, 3, 4)),
    "item_ellipsis_integer": (_item_ellipsis_integer, (2, 3, 4)),
    "item_step": (_item_step, (1, 2, 3, 4)),
    "item_several": (_item_several, (2, 3, 4)),
    "item_new_axis": (_item_new_axis, (1, 2, 3)),
    "split": (_split, (1, 2, 3, 4)),
    "unstack": (_unstack, (2, 3)),
    "transpose": (_transpose, (2, 3, 4)),
    "moveaxis": (lambda d, x: ops.moveaxis(x, d.axis(x), d.axis(x)), (2, 3, 4)),
    "swapaxes": (lambda d, x: ops.swapaxes(x, d.axis(x), d.axis(x)), (2, 3, 4)),
    "expand_dims": (
        lambda d, x: ops.expand_dims(x, d.size(1, len(x.shape))),
        (1, 2, 3),
    ),
    "squeeze": (_squeeze, (1, 2, 3)),
    "over_channels": (_over_channels, (1, 2, 3, 4)),
    "pad": (_pad, (1, 2, 3, 4)),
    "cast": (_cast, (1, 2, 3, 4)),
    "tile": (_tile, (1, 2, 3)),
    "repeat": (_repeat, (1, 2, 3, 4)),
    "roll": (_roll, (1, 2, 3, 4)),
    "flip": (_flip, (1, 2, 3, 4)),
    "broadcast": (_broadcast, (1, 2, 3, 4)),
    "broadcast_lower": (_broadcast_lower, (1, 2, 3, 4)),
    "constant": (_constant, (1, 2, 3, 4)),
    "op_softmax": (_softmax, (1, 2, 3, 4)),
    "normalize": (_normalize, (1, 2, 3)),
    "cumsum": (lambda d, x: ops.cumsum(x, axis=d.axis(x)), (1, 2, 3)),
    "sort": (lambda d, x: ops.sort(x, axis=-1), (1, 2)),
    "take": (_take, (1, 2, 3, 4)),
    "take_along": (_take_along, (1, 2)),
    "top_k": (_top_k, (1, 2, 3)),
    "indices": (_indices, (1, 2)),
    "one_hot": (_one_hot, (1, 2, 3)),
    "op_reshape": (_reshape, (1, 2, 3, 4)),
    "broadcast_to": (_broadcast_to, (1, 2, 3)),
    "diff": (lambda d, x: ops.diff(x, axis=d.axis(x)), (1, 2, 3)),
    "triangle": (lambda d, x: ops.tril(x), (2, 3)),
    "resize": (_resize, (3,)),
    "op_pool": (_pooled, (3,)),
    **BLOCKS,
}
KINDS = {name: Operation(make, ranks) for name, (make, ranks) in _ITEMS.items()}
KINDS |= {
    f"op_{name}": Operation(lambda d, x, f=function: f(x))
    for name, function in _UNARY.items()
}
KINDS |= {
    f"reduce_{name}": Operation(_reduced(function), (1, 2, 3, 4))
    for name, function in _REDUCED.items()
}
KINDS |= {
    name: Operation(lambda d, x, y, f=function: f(x, y), takes=2)
    for name, function in _BINARY.items()
}
KINDS |= {
    "op_concatenate": Operation(
        lambda d, x, y: ops.concatenate([x, y], axis=d.axis(x)), takes=2
    ),
    "op_stack": Operation(_stack, (1, 2, 3), 2),
    "matmul": Operation(_matmul, (2, 3), 2),
    "op_einsum": Operation(_einsum, (1, 2), 2),
}
