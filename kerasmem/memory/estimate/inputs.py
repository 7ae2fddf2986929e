"""The inputs of a model with every length known, or one clear error."""

from collections.abc import Mapping, Sequence
from typing import Any

from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.layers import has_graph
from kerasmem.memory.estimate.request import Input

Shape = Sequence[int | None]


def checked_inputs(
    model: Any, batch_size: int, input_shape: Any | None
) -> tuple[Input, ...]:
    """Return the inputs of the model with every axis known.

    Args:
        model: a built model.
        batch_size: length of the batch axis.
        input_shape: shape without the batch axis, one per input by name or in order if
            there are several; None for the model's own.

    Raises:
        ModelError: if the shape of an input is not known in full.
        ConfigError: if `input_shape` does not fit the inputs.
    """
    _check_batch_axis(model, batch_size)
    own = _own_inputs(model)
    given = _given_shapes(input_shape, [name for name, _, _ in own])
    return tuple(
        Input(name, (batch_size, *_merged(name, shape, given.get(name))), dtype)
        for name, shape, dtype in own
    )


def _check_batch_axis(model: Any, batch_size: int) -> None:
    inputs = model.inputs if has_graph(model) else []
    fixed = {x.shape[0] for x in inputs if x.shape} - {None, batch_size}
    if fixed:
        raise ConfigError(
            f"The model {model.name!r} takes batches of one size only. Expected: "
            f"{min(fixed)}. Received: batch_size={batch_size}."
        )


def _own_inputs(model: Any) -> list[tuple[str, Shape | None, str]]:
    """Return name, shape without the batch axis (None if unknown) and dtype."""
    if has_graph(model):
        return [(x.name, tuple(x.shape[1:]), x.dtype) for x in model.inputs]
    # A model without a graph remembers at most the shape that it was built with.
    shapes = list((model._build_shapes_dict or {}).items())
    return [
        (name, tuple(shape[1:]) if _is_shape(shape) else None, model.input_dtype)
        for name, shape in shapes
    ] or [("inputs", None, model.input_dtype)]


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, (tuple, list)) and all(
        size is None or (isinstance(size, int) and size > 0) for size in shape
    )


def _given_shapes(input_shape: Any, names: list[str]) -> dict[str, tuple[int, ...]]:
    shapes = _by_name(input_shape, names)
    if shapes is None or not all(map(_is_shape, shapes.values())):
        raise ConfigError(
            "The input shape does not fit the model. Expected: a shape without the "
            f"batch axis, of lengths from 1, or one per input of {names}. Received: "
            f"input_shape={input_shape!r}."
        )
    return {name: tuple(shape) for name, shape in shapes.items()}


def _by_name(input_shape: Any, names: list[str]) -> dict[str, Any] | None:
    """Return the shapes by input, None if they cannot be told apart."""
    if input_shape is None:
        return {}
    if isinstance(input_shape, Mapping):
        return dict(input_shape) if set(input_shape) <= set(names) else None
    if _is_shape(input_shape):
        return {names[0]: input_shape}
    if not isinstance(input_shape, (tuple, list)) or len(input_shape) > len(names):
        return None
    return dict(zip(names, input_shape, strict=False))


def _merged(name: str, own: Shape | None, given: Shape | None) -> tuple[int, ...]:
    shape = given if own is None else own if given is None else _filled(own, given)
    if shape is None or None in shape:
        lengths = ", ".join(map(str, shape or ()))
        known = "of unknown shape" if shape is None else f"of shape (batch, {lengths})"
        raise ModelError(
            "The memory depends on the length of every axis of the input. Expected: "
            f"known lengths. Received: input {name!r} {known}. Next: pass "
            "input_shape= (--input-shape), without the batch axis; for a bound, the "
            "largest one that occurs."
        )
    return tuple(size for size in shape if size is not None)


def _filled(own: Shape, given: Shape) -> Shape:
    fits = len(own) == len(given) and all(
        known is None or known == size for known, size in zip(own, given, strict=True)
    )
    if not fits:
        raise ConfigError(
            "The input shape does not fit the model. Expected: its own, with a length "
            f"in the place of every None: {tuple(own)}. Received: "
            f"input_shape={tuple(given)}."
        )
    return given
