"""Input shapes of a model, with unknown lengths filled in."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from kerasmem.errors import ConfigError
from kerasmem.graph.layers import sublayers
from kerasmem.types import Model

Shape = Sequence[int | None]
"""Shape without the batch axis. None is an unknown length."""


def fixed_batch(model: Model, *, of_states: bool = False) -> int | None:
    """Returns the fixed batch size of a model, or None.

    A stateful layer or an `Input` with a batch size fixes the batch size. A
    `Sequential` model records the size of its first batch, but accepts any size. With
    `of_states`, only stateful layers count.
    """
    for layer in sublayers(model):
        if isinstance(layer, keras.layers.RNN) and layer.stateful and layer.states:
            return keras.tree.flatten(layer.states)[0].shape[0]
    if of_states or isinstance(model, keras.Sequential):
        return None
    inputs = keras.tree.flatten(getattr(model, "inputs", None) or [])
    sizes = [x.shape[0] for x in inputs if x.shape and x.shape[0] is not None]
    return next(iter(sizes), None)


def is_shape(shape: Any) -> bool:
    """Returns whether `shape` contains only lengths of at least 1 and None."""
    return isinstance(shape, (tuple, list)) and all(
        size is None or (isinstance(size, int) and size > 0) for size in shape
    )


def with_lengths(
    own: Mapping[str, Shape | None], input_shape: Any | None, *, binding: bool = True
) -> dict[str, Shape | None]:
    """Returns the shape of every input after applying `input_shape`.

    `own` contains the input shapes of the model by name, or None if unknown. Unless
    `binding`, `input_shape` overrides known lengths. Raises `ConfigError` if
    `input_shape` does not match the inputs.
    """
    shapes = _requested_shapes(input_shape, list(own))
    if not binding:
        return {**own, **shapes}
    return {name: _merged(shape, shapes.get(name)) for name, shape in own.items()}


def open_lengths(shapes: Mapping[str, Shape | None]) -> str:
    """Describes the inputs with unknown lengths. Returns `""` if there are none."""
    words = [
        f"input {name!r} of unknown shape"
        if shape is None
        else f"input {name!r} of shape (batch, {', '.join(map(str, shape))})"
        for name, shape in shapes.items()
        if shape is None or None in shape
    ]
    return " and ".join(words)


def once_per_input(names: Iterable[str]) -> str:
    """Returns a hint for the command line, or `""` for a single input.

    Example:
        >>> once_per_input(["ids", "mask"])
        ', once for each of ids, mask, in this order'
    """
    names = list(names)
    several = f", once for each of {', '.join(names)}, in this order"
    return several if len(names) > 1 else ""


def _requested_shapes(input_shape: Any, names: list[str]) -> dict[str, Shape]:
    shapes = _by_name(input_shape, names)
    if shapes is None or not all(map(is_shape, shapes.values())):
        raise ConfigError(
            "The input shape does not fit the model. Expected: a shape without the "
            f"batch axis, with lengths from 1, or one per input of {names} (on the "
            "command line: --input-shape once per input, in this order). Received: "
            f"input_shape={input_shape!r}."
        )
    return {name: tuple(shape) for name, shape in shapes.items()}


def _by_name(input_shape: Any, names: list[str]) -> dict[str, Any] | None:
    if input_shape is None:
        return {}
    if isinstance(input_shape, Mapping):
        return dict(input_shape) if set(input_shape) <= set(names) else None
    if is_shape(input_shape):
        return {names[0]: input_shape}
    if not isinstance(input_shape, (tuple, list)) or len(input_shape) > len(names):
        return None
    return dict(zip(names, input_shape, strict=False))


def _merged(own: Shape | None, requested: Shape | None) -> Shape | None:
    if own is None or requested is None:
        return own if requested is None else requested
    fits = len(own) == len(requested) and all(
        length is None or length == size
        for length, size in zip(own, requested, strict=True)
    )
    if not fits:
        raise ConfigError(
            "The input shape does not fit the model. Expected: the shape "
            f"{tuple(own)} without the batch axis and with a length for every None. "
            f"Received: input_shape={tuple(requested)}."
        )
    return requested
