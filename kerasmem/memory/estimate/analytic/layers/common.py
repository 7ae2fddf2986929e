"""Layers that all backends compute alike."""

from typing import Any

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.parts import projected
from kerasmem.memory.estimate.analytic.site import Handler, Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Shape, Tensor


def same(_t: Tape, _s: Site, xs: list[Tensor]) -> Tensor:
    """Identity: the very tensor that went in."""
    return xs[0]


def reshaped(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Another shape for the same memory."""
    return t.view(xs[0], s.shape)


def moved(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Entries copied to other places: padding, cropping, repeating, permuting."""
    return p.copied(t, xs[0], s.shape, "copy")


def mean_over_space(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Global pooling, and every other reduction to fewer entries."""
    return p.reduced(t, xs[0], s.shape, "mean")


def max_over_space(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """The maximum over axes; its gradient asks again where the maximum was."""
    x = xs[0]
    y = t.new(s.shape, x.width)
    t.op("max", (x,), y, reduces=True)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        dx = t.new(x.shape, x.width, layout=x.layout)
        t.op("max gradient", (dy, x, y), dx)
        return [dx]

    t.pull((x,), y, pullback)
    return y


def summed(t: Tape, _s: Site, xs: list[Tensor]) -> Tensor:
    """Add, Subtract, Average: nothing is kept."""
    y = xs[0]
    for x in xs[1:]:
        y = p.add(t, y, x)
    return y


def multiplied(t: Tape, _s: Site, xs: list[Tensor]) -> Tensor:
    """Multiply: every factor is kept."""
    y = xs[0]
    for x in xs[1:]:
        y = p.multiply(t, y, x)
    return y


def compared(t: Tape, _s: Site, xs: list[Tensor]) -> Tensor:
    """Maximum and Minimum: the gradient compares the operands again."""
    y = xs[0]
    for x in xs[1:]:
        y = p.pointwise(t, "compare", y, x, needs=((y, x), (y, x)))
    return y


def concatenated(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Concatenate."""
    return p.joined(t, xs, s.shape)


def contracted(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Dot, Matmul, Einsum of two activations."""
    return p.product(t, "matmul", xs[0], xs[-1], s.shape)


def rescaled(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Rescaling and Normalization: two operations with constants."""
    x = p.converted(t, xs[0], s.width)
    return p.scaled(t, p.scaled(t, x))


def unknown(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """A layer that no table knows: as if it kept its inputs and its output."""
    variables = getattr(s.layer, "trainable_variables", ())
    params = [s.parameter(variable) for variable in variables]
    y = t.new(s.shape, s.width, layout=xs[0].layout if xs else "last")
    reads = (*xs, *params)
    t.op("unknown", reads, y)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        made = [t.new(x.shape, x.width, layout=x.layout) for x in reads]
        t.op("unknown gradient", (dy, y, *reads), *made)
        return list(made)

    t.pull(reads, y, pullback)
    return y


def dense(t: Tape, s: Site, xs: list[Tensor], activate: Any) -> Tensor:
    """Dense and EinsumDense: a product, a bias, an activation."""
    y = projected(t, s, s.layer, xs[0], s.shape)
    return activate(t, s.layer.activation, y)


def taken(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Take: rows of a tensor; the gradient is made as large as the tensor."""
    return _taken(t, s, xs, sparse=False)


def taken_sparsely(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Take where the gradient of a variable is of the rows that were read."""
    return _taken(t, s, xs, sparse=True)


def _taken(t: Tape, s: Site, xs: list[Tensor], *, sparse: bool) -> Tensor:
    given = dict(zip(s.names, xs, strict=True))
    x, indices = given.get("x", xs[0]), given.get("indices", xs[0])
    return gathered(t, x, indices, s.shape, sparse=sparse and x.kind == "parameter")


def chosen(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Where: only the condition is kept."""
    pairs = list(zip(s.names, xs, strict=True))
    conditions = [x for name, x in pairs if name == "condition"]
    values = [x for name, x in pairs if name != "condition"]
    if not values:
        return told(t, s, xs)
    needs = [*((conditions,) * len(values)), *((None,) * len(conditions))]
    return p.pointwise(t, "where", *values, *conditions, needs=needs)


def told(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Comparisons, and all else to which no gradient flows."""
    y = t.new(s.shape, s.width, differentiable=False)
    t.op("tell", xs, y, fusible=True)
    return y


def divided(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Divide: both operands are kept, a number is not."""
    if s.names == ("x1",):
        return p.scaled(t, xs[0])
    if s.names == ("x2",):
        return p.of_output(t, "reciprocal", xs[0])
    above, below = xs
    return p.pointwise(t, "divide", *xs, needs=((below,), (above, below)))


def negated(t: Tape, _s: Site, xs: list[Tensor]) -> Tensor:
    """Negative: nothing is kept."""
    return p.scaled(t, xs[0])


def cast(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Cast: another width."""
    return p.converted(t, xs[0], s.width)


def positioned(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """KerasHub's PositionEmbedding: the first rows of a table for every sample."""
    table = s.parameter(s.layer.position_embeddings)
    return p.spread(t, p.copied(t, table, s.shape[-2:], "slice"), xs[0])


def looked_up(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Embedding: rows of a table; the gradient is made as large as the table."""
    return rows(t, s, xs, sparse=False)


def rows(t: Tape, s: Site, xs: list[Tensor], *, sparse: bool) -> Tensor:
    """Return rows of a table, with a gradient for those rows or for all."""
    table = s.parameter(s.layer.embeddings)
    return gathered(t, table, xs[0], s.shape, sparse=sparse)


def gathered(
    t: Tape, table: Tensor, indices: Tensor, shape: Shape, *, sparse: bool
) -> Tensor:
    """Return rows of `table`, with a gradient for those rows or for all."""
    y = t.new(shape, table.width)
    t.op("gather", (table, indices), y)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        if sparse:
            return [dy]
        dx = t.new(table.shape, table.width)
        t.op("scatter", (dy, indices), dx)
        return [dx]

    t.pull((table,), y, pullback)
    return y


COMMON: dict[str, Handler] = {
    **dict.fromkeys(
        ["Identity", "InputLayer", "ActivityRegularization", "Masking"], same
    ),
    **dict.fromkeys(
        ["Flatten", "Reshape", "ExpandDims", "Squeeze", "Ravel", "StopGradient"],
        reshaped,
    ),
    **dict.fromkeys(
        [
            *["ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "Cropping1D"],
            *["Cropping2D", "Cropping3D", "UpSampling1D", "UpSampling2D"],
            *["UpSampling3D", "RepeatVector", "Permute", "Transpose", "Pad", "GetItem"],
            *["Repeat", "Tile", "Flip", "Roll", "Slice", "BroadcastTo", "SwapAxes"],
            *["Moveaxis", "Split", "Resizing", "Resize", "CenterCrop", "TopK"],
        ],
        moved,
    ),
    **dict.fromkeys(
        [
            *["GlobalAveragePooling1D", "GlobalAveragePooling2D"],
            *["GlobalAveragePooling3D", "Mean", "Sum"],
        ],
        mean_over_space,
    ),
    **dict.fromkeys(
        [
            *["GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D"],
            *["Max", "Min", "Amax", "Amin", "Prod"],
        ],
        max_over_space,
    ),
    **dict.fromkeys(["Add", "Subtract", "Average"], summed),
    "Multiply": multiplied,
    **dict.fromkeys(["Divide", "TrueDivide"], divided),
    "Negative": negated,
    "Cast": cast,
    "Where": chosen,
    "Take": taken,
    "PositionEmbedding": positioned,
    **dict.fromkeys(
        [
            *["Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"],
            *["LogicalAnd", "LogicalOr", "LogicalNot", "All", "Any", "ZerosLike"],
            *["OnesLike", "OneHot", "Argmax", "Argmin"],
        ],
        told,
    ),
    **dict.fromkeys(["Maximum", "Minimum"], compared),
    **dict.fromkeys(["Concatenate", "Stack", "Hstack", "Vstack"], concatenated),
    **dict.fromkeys(["Dot", "Matmul", "Einsum", "Tensordot"], contracted),
    **dict.fromkeys(["Rescaling", "Normalization"], rescaled),
    "Embedding": looked_up,
}
