"""The shapes of a model's inputs, with the lengths that it leaves open filled in."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from kerasmem.errors import ConfigError
from kerasmem.graph.layers import sublayers
from kerasmem.types import Model

Shape = Sequence[int | None]
"""Without the batch axis; None is an open length."""


def fixed_batch(model: Model, *, of_states: bool = False) -> int | None:
    """Return the batch size that a model was made for, None if there is none.

    A stateful layer or an `Input` with a batch size fixes it. A `Sequential` that was
    built by its first batch records the size of that batch, and takes any other.

    Args:
        model: A `keras.Model`.
        of_states: True for the size of stateful layers only, which take no other.
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
    """Return whether `shape` has only lengths from 1 and open ones."""
    return isinstance(shape, (tuple, list)) and all(
        size is None or (isinstance(size, int) and size > 0) for size in shape
    )


def with_lengths(
    own: Mapping[str, Shape | None], input_shape: Any | None, *, binding: bool = True
) -> dict[str, Shape | None]:
    """Return the shape of every input, with the lengths that were given.

    Args:
        own: what the model says of each input by name, None where it says nothing.
        input_shape: a shape, one per input by name or in order if there are several;
            None for the model's own.
        binding: whether the model takes no other lengths than those that it says; if
            not, what is given counts.

    Raises:
        ConfigError: if `input_shape` does not fit the inputs.
    """
    shapes = _requested_shapes(input_shape, list(own))
    if not binding:
        return {**own, **shapes}
    return {name: _merged(shape, shapes.get(name)) for name, shape in own.items()}


def open_lengths(shapes: Mapping[str, Shape | None]) -> str:
    """Return the inputs with lengths that are not known in words, `""` if all are.

    Args:
        shapes: those of inputs by name, None where nothing is known.
    """
    words = [
        f"input {name!r} of unknown shape"
        if shape is None
        else f"input {name!r} of shape (batch, {', '.join(map(str, shape))})"
        for name, shape in shapes.items()
        if shape is None or None in shape
    ]
    return " and ".join(words)


def once_per_input(names: Iterable[str]) -> str:
    """Return how the command line takes the shapes, `""` for a single input.

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
            f"batch axis, of lengths from 1, or one per input of {names} (on the "
            "command line --input-shape again for each, in this order). Received: "
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
            "The input shape does not fit the model. Expected: its own, with a length "
            f"in the place of every None: {tuple(own)}. Received: "
            f"input_shape={tuple(requested)}."
        )
    return requested
