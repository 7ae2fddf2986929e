"""Layers with the same or similar operations on all backends."""

import math
from collections.abc import Sequence
from functools import partial, reduce

import keras

from kerasmem.graph.computed import PARTS, ComputedVariable, rows_of_chunk
from kerasmem.graph.kernels import class_of_call, einsum_parts
from kerasmem.graph.layer_table import class_name
from kerasmem.graph.lora import has_lora, has_low_rank_product
from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.activations import activate
from kerasmem.memory.estimate.analytic.tape import Site, Tape
from kerasmem.memory.program import ProgramTensor, Shape
from kerasmem.types import Layer

FLOAT = 4
"""Bytes of a float32, the minimum precision of normalization and softmax."""


def identity(_t: Tape, _s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Identity: returns the input tensor."""
    return xs[0]


def reshape(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Reshape and similar: a view of the same memory."""
    return t.view(xs[0], s.shape)


def transpose(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Transpose: a copy, or a view of a weight for a matrix product."""
    return (reshape if s.of_weights else copy_entries)(t, s, xs)


def copy_entries(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Padding, cropping, repetition and permutation: a copy."""
    return p.copy(t, xs[0], s.shape, "copy")


def mean(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Global pooling and other reductions."""
    return p.reduce(t, xs[0], s.shape, "mean")


def maximum_over_axes(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Maximum over axes: the gradient finds the maximum again."""
    y = t.new(s.shape, xs[0].width)
    return p.single(t, "max", xs[:1], y, keeps=(xs[0], y), reduces=True)


def add(t: Tape, _s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Add, Subtract, Average: nothing is saved."""
    return reduce(partial(p.add, t), xs)


def multiply(t: Tape, _s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Multiply: every factor is saved."""
    return reduce(partial(p.multiply, t), xs)


def elementwise_extremum(t: Tape, _s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Maximum and Minimum: the gradient compares the operands again."""
    pointwise = partial(p.pointwise, t, "compare")
    return reduce(lambda y, x: pointwise(y, x, needs=((y, x), (y, x))), xs)


def concatenate(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Concatenate."""
    return p.concatenate(t, xs, s.shape)


def contract(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Dot, Matmul, Einsum of two activations."""
    return p.product(t, "matmul", xs[0], xs[-1], s.shape)


def rescale(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Rescaling and Normalization: two operations with constants."""
    return p.scale(t, p.scale(t, cast(t, s, xs)))


def unknown(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """A layer without a handler: assumed to save its inputs and its output."""
    variables = getattr(s.layer, "trainable_variables", ())
    reads = (*xs, *map(s.parameter, variables))
    y = t.new(s.shape, s.width, layout=xs[0].layout if xs else "last")
    return p.single(t, "unknown", reads, y, keeps=(y, *reads))


def dense(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Dense and EinsumDense: a product, a bias and an activation."""
    y = projection(t, s, s.layer, xs[0], s.shape)
    return activate(t, s.layer.activation, y)


def projection(
    t: Tape, s: Site, layer: Layer, x: ProgramTensor, shape: Shape
) -> ProgramTensor:
    """Return the product of `x` with the kernel of a dense layer, and its bias."""
    if multiplies_codes(layer):
        y = p.product_of_codes(t, x, tuple(layer._kernel.shape), shape)
        y = p.add(t, y, _low_rank(t, s, layer, x, shape)) if has_lora(layer) else y
    else:
        y = p.product(t, "matmul", x, kernel_of(t, s, layer), shape)
    return y if layer.bias is None else p.add(t, y, s.parameter(layer.bias))


def multiplies_codes(layer: Layer) -> bool:
    """Return whether a Dense or EinsumDense layer dequantizes its kernel."""
    kernel = vars(layer).get("_kernel")
    if not isinstance(kernel, ComputedVariable) or kernel.trainable:
        return False
    is_known = class_of_call(layer) in (keras.layers.Dense, keras.layers.EinsumDense)
    return is_known and (not has_lora(layer) or has_low_rank_product(layer))


def gives_logits_of_codes(layer: Layer) -> bool:
    """Return whether a `ReversibleEmbedding` layer dequantizes its table."""
    if not isinstance(layer, keras.layers.ReversibleEmbedding) or has_lora(layer):
        return False
    if class_of_call(layer) is not keras.layers.ReversibleEmbedding:
        return False
    is_tied = layer.tie_weights
    table = vars(layer).get("_embeddings" if is_tied else "reverse_embeddings")
    is_coded = isinstance(table, ComputedVariable) and table.has_parts(1 - is_tied)
    return is_coded and layer.reverse_dtype is None


def reversible_embedding(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Quantized ReversibleEmbedding: rows of the table, or logits."""
    layer = s.layer
    if len(s.shape) > len(xs[0].shape):
        return embedding(t, s, xs)
    y = p.product_of_codes(t, xs[0], (layer.input_dim, layer.output_dim), s.shape)
    if layer.logit_soft_cap is None:
        return y
    return p.scale(t, activate(t, keras.activations.tanh, p.scale(t, y)))


def _low_rank(
    t: Tape, s: Site, layer: Layer, x: ProgramTensor, shape: Shape
) -> ProgramTensor:
    down, up = map(s.parameter, (layer.lora_kernel_a, layer.lora_kernel_b))
    place = len(shape) - 1
    if isinstance(layer, keras.layers.EinsumDense):
        _, kernel, output = einsum_parts(layer.equation)
        place -= output[::-1].index(kernel[-1])
    narrow = (*shape[:place], layer.lora_rank, *shape[place + 1 :])
    inner = p.scale(t, p.product(t, "matmul", x, down, narrow))
    return p.product(t, "matmul", inner, up, shape)


def kernel_of(t: Tape, s: Site, layer: Layer, name: str = "kernel") -> ProgramTensor:
    """Return the kernel or table of a layer. With LoRA, the low-rank product is added.

    The sum is computed in every call.
    """
    if not has_lora(layer):
        return s.parameter(getattr(layer, name))
    weight = vars(layer)[f"_{name}"]  # The public attribute is the sum, a tensor.
    a, b = (s.parameter(getattr(layer, f"lora_{name}_{end}")) for end in "ab")
    change = p.product(t, "matmul", a, b, tuple(weight.shape))
    return p.add(t, s.parameter(weight), p.scale(t, change))


def take(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Take: rows of a tensor."""
    by_name = dict(zip(s.names, xs, strict=True))
    x, indices = by_name.get("x", xs[0]), by_name.get("indices", xs[0])
    return _gather(t, s, x, indices, sparse=t.how.sparse and x.kind == "parameter")


def embedding(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Embedding: rows of a table. A quantized table dequantizes only these rows."""
    own = vars(s.layer).get("_embeddings")
    if isinstance(own, ComputedVariable) and own.has_parts(0) and not has_lora(s.layer):
        y = t.new(s.shape, s.width)
        t.op("gather", (xs[0],), y)
        return y
    table = kernel_of(t, s, s.layer, "embeddings")
    return _gather(t, s, table, xs[0], sparse=t.how.sparse)


def _gather(
    t: Tape, s: Site, table: ProgramTensor, indices: ProgramTensor, *, sparse: bool
) -> ProgramTensor:
    y = t.new(s.shape, table.width)
    if not sparse:
        keeps = constants = (indices,)
        return p.single(t, "gather", (table,), y, keeps=keeps, constants=constants)
    t.op("gather", (table, indices), y)
    t.pull((table,), y, lambda dy: [dy])
    return y


def where(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Where: only the condition is saved."""
    pairs = list(zip(s.names, xs, strict=True))
    conditions = [x for name, x in pairs if name == "condition"]
    values = [x for name, x in pairs if name != "condition"]
    if not values:
        return without_gradient(t, s, xs)
    needs = [*((conditions,) * len(values)), *((None,) * len(conditions))]
    return p.pointwise(t, "where", *values, *conditions, needs=needs)


def without_gradient(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Comparisons and other operations without a gradient."""
    y = t.new(s.shape, s.width)
    t.op("tell", xs, y, fusible=True)
    return y


def divide(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Divide: both operands are saved, except for numbers."""
    if s.names == ("x1",):
        return p.scale(t, xs[0])
    if s.names == ("x2",):
        return p.of_output(t, "reciprocal", xs[0])
    above, below = xs
    return p.pointwise(t, "divide", *xs, needs=((below,), (above, below)))


def negate(t: Tape, _s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Negative: nothing is saved."""
    return p.scale(t, xs[0])


def cast(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Cast: a conversion to another dtype."""
    return p.cast(t, xs[0], s.width)


def chunked_vocabulary(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """ChunkedVocabulary: logits of some rows at a time during training.

    The loss computes the gradients of the states and of a trainable table together with
    the logits. Only these gradients are saved.
    """
    states = xs[0]
    table = _table_of(t, s, states)
    if not t.training:
        return p.product(t, "matmul", states, table, s.shape)
    operands = [x for x in (states, table) if x.differentiable]
    slopes = [t.new(x.shape, x.width) for x in operands]
    logits = rows_of_chunk(math.prod(states.shape[:-1])) * s.shape[-1] * FLOAT
    y = t.new(states.shape, states.width, layout=states.layout)
    reads = (states, table)
    copies = _LOGITS_AT_ONCE[t.how.kernels]
    if s.layer.logit_soft_cap is not None and t.how.kernels != "xla":
        copies += 2  # The tangent of the soft cap, and the logit gradients.
    space = logits * copies
    t.op("chunks", reads, y, *slopes, workspace=space)

    def pullback(dy: ProgramTensor) -> list[ProgramTensor]:
        gradients = [t.new(slope.shape, slope.width) for slope in slopes]
        for slope, dx in zip(slopes, gradients, strict=True):
            t.op("slope", (dy, slope), dx, over=(slope,))
        return gradients

    t.pull(operands, y, pullback)
    return y


def _table_of(t: Tape, s: Site, states: ProgramTensor) -> ProgramTensor:
    embedding = s.layer.embedding
    if embedding is not None and getattr(embedding, "tie_weights", True):
        if has_lora(embedding):
            return kernel_of(t, s, embedding, "embeddings")
        own, axis = embedding.embeddings, 0
    else:
        own = s.layer.kernel if embedding is None else embedding.reverse_embeddings
        axis = 1
    if not isinstance(own, ComputedVariable) or not own.has_parts(axis):
        return s.parameter(own)
    table = t.new((-(-s.shape[-1] // PARTS), states.shape[-1]), states.width)
    t.op("dequantize", (states,), table)
    return table


_LOGITS_AT_ONCE = {"tensorflow": 2, "torch": 3, "xla": 1}
"""Tensors in the size of one chunk's logits: the logits, their gradients and partial
results. Determined from TensorFlow's allocator and XLA's compiler."""


def position_embedding(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """PositionEmbedding of KerasHub: the first rows of a table for every sample."""
    table = s.parameter(s.layer.position_embeddings)
    return p.broadcast_to(t, p.copy(t, table, s.shape[-2:], "slice"), xs[0])


def reduced_shape(x: ProgramTensor, axes: Sequence[int]) -> Shape:
    """Return the shape of a reduction of `x` over all axes but `axes`."""
    axes_left = {axis % len(x.shape) for axis in axes}
    return tuple(n if i in axes_left else 1 for i, n in enumerate(x.shape))


def dropout_layer(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Dropout layers of all types."""
    layer, x = s.layer, xs[0]
    if not layer.rate:
        return x
    if class_name(layer).startswith("Spatial"):
        return dropout(t, x, reduced_shape(x, [0, -1]))
    noise_shape = getattr(layer, "noise_shape", None) or x.shape
    return dropout(
        t, x, tuple(n or m for n, m in zip(noise_shape, x.shape, strict=True))
    )


def dropout(t: Tape, x: ProgramTensor, shape: Shape) -> ProgramTensor:
    """Apply dropout to `x`, saving a mask of one byte per entry.

    TensorFlow and XLA draw random numbers of shape `shape` as float32.
    """
    if not t.training:
        return x
    source = x
    if t.how.kernels != "torch":
        source = t.new(shape, FLOAT)
        t.op("random", (x,), source)
    mask = t.new(shape, 1)
    t.op("mask", (source,), mask)
    return p.pointwise(t, "dropout", x, mask, needs=((mask,), None))


# Random image layers change images only during training. The scratch space was
# determined from traces of steps on a CPU. XLA's warps have no rule yet: on a CPU they
# take 37 times the images.
_TORCH_SCRATCH = {"RandomContrast": 1}
_TORCH_WARP = 7
"""Scratch space in torch relative to the images: of some layers, and of a warp."""


def flip(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """RandomFlip: a flipped copy and a selection for each axis."""
    x = cast(t, s, xs)
    if not t.training:
        return x
    for _ in s.layer.mode.split("_and_"):
        mirror = p.copy(t, x, s.shape, "flip")
        x = p.pointwise(t, "select", mirror, x, needs=((), ()))
    return x


def change(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Layers with one new image per image."""
    x = cast(t, s, xs)
    if not t.training and x.shape == s.shape:
        return x
    return p.copy(t, x, s.shape, "change")


def torch_change(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """RandomContrast and warps in torch: Keras computes the coordinates of warps."""
    x = cast(t, s, xs)
    if not t.training:
        return x
    y = t.new(s.shape, x.width, layout=x.layout)
    space = _TORCH_SCRATCH.get(class_name(s.layer), _TORCH_WARP) * y.nbytes
    return p.single(t, "change", (x,), y, workspace=space, space=space)
