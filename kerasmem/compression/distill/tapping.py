"""What layers inside of a model give, from the one pass that it makes anyway."""

import contextlib
import difflib
import re
from collections.abc import Iterator
from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.observe import LayerCall, observing

_REPEATING = (keras.layers.RNN, keras.layers.Wrapper)
"""What runs a layer in a loop: what that gives is no tensor outside of it."""


def inner_layers(model: Any) -> dict[str, Any]:
    """Return every layer inside of a model whose outputs can be looked at, by its path.

    A path is the names from the outside in, such as `"encoder/block_1/dense"`.
    """
    found: dict[str, Any] = {}
    _collect(model, "", found, set())
    return found


def _collect(layer: Any, prefix: str, found: dict[str, Any], seen: set[int]) -> None:
    if isinstance(layer, _REPEATING):
        return
    # Keras has no public list of the layers that a plain layer holds.
    for inner in getattr(layer, "_layers", ()):
        if id(inner) not in seen and isinstance(inner, keras.layers.Layer):
            seen.add(id(inner))
            if _is_graph_of(inner, layer):
                _collect(inner, prefix, found, seen)
                continue
            path = f"{prefix}{inner.name}"
            found.setdefault(path, inner)
            _collect(inner, f"{path}/", found, seen)


def _is_graph_of(inner: Any, layer: Any) -> bool:
    """Return True for the model that a Sequential keeps its own graph in."""
    return isinstance(layer, keras.Sequential) and inner is layer._functional


def find_layers(model: Any, name: str, role: str) -> list[tuple[str, int]]:
    """Return the paths that a name means, and which tensor of the layer's.

    Args:
        model: where to look.
        name: path, layer name or regular expression; with `":1"` at its end for the
            second tensor.
        role: `"teacher"` or `"student"`, for the text of the error.

    Raises:
        ModelError: if it means none, with the nearest names; or two of one name.
    """
    wanted, index = _split(name)
    layers = inner_layers(model)
    if wanted in layers:
        return [(wanted, index)]
    named = [path for path, layer in layers.items() if layer.name == wanted]
    if len(named) > 1:
        raise ModelError(
            f"The {role} {model.name!r} has {len(named)} layers of the name "
            f"{wanted!r}. Next: use one of their paths: {', '.join(named)}."
        )
    try:
        named = named or [path for path in layers if re.fullmatch(wanted, path)]
    except re.error:
        named = []
    if not named:
        near = difflib.get_close_matches(wanted, _names(layers), n=3, cutoff=0.3)
        raise ModelError(
            f"The {role} {model.name!r} has no layer {wanted!r}. The nearest names: "
            f"{', '.join(near or list(layers)[:3]) or 'it has no layers'}."
        )
    return [(path, index) for path in named]


def _names(layers: dict[str, Any]) -> list[str]:
    return [*layers, *{layer.name for layer in layers.values()} - set(layers)]


def _split(name: str) -> tuple[str, int]:
    wanted, _, index = name.rpartition(":")
    return (wanted, int(index)) if wanted and index.isdigit() else (name, 0)


@contextlib.contextmanager
def tapped(layers: dict[str, Any]) -> Iterator[dict[str, list[Any]]]:
    """Give a dict that fills with what layers return while the context lasts.

    The order is that of the calls; of a layer that is called twice the last call
    counts. Afterwards the layers are as before.

    Args:
        layers: by the name under which their tensors are wanted.
    """
    given: dict[str, list[Any]] = {}

    def note(call: LayerCall) -> None:
        for name in [name for name, layer in layers.items() if layer is call.layer]:
            given.pop(name, None)
            tensors = keras.tree.flatten(call.outputs)
            given[name] = [x for x in tensors if hasattr(x, "shape")]

    with observing(layers.values(), outputs=note):
        yield given
