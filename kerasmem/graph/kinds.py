"""What an operation of a graph is: its row in the layer table, or what a user says."""

from dataclasses import fields, replace
from typing import Any
from weakref import WeakKeyDictionary

import keras

from kerasmem.errors import ConfigError, as_received
from kerasmem.graph.layer_table import LAYERS, LayerEntry

_REGISTERED: WeakKeyDictionary[type, LayerEntry] = WeakKeyDictionary()


def kind(operation: Any) -> str | None:
    """Return the name of a layer's or operation's entry: `"layers.Dense"`, `"ops.Add"`.

    None for a class of somebody else's that is not registered, a subclass of Keras's
    too: it may do more. A class of Keras's own has a name even if no row has it.
    """
    return _name_of(type(operation))


def entry_of(operation: Any, *, subclasses: bool = False) -> LayerEntry:
    """Return what is known of a layer or operation; nothing, if no row has it.

    Args:
        operation: a layer or a `keras.Operation`.
        subclasses: whether the entry of the nearest base class will do, for what a
            subclass inherits, such as how the kernel lies.
    """
    bases = type(operation).__mro__ if subclasses else (type(operation),)
    found = next(filter(None, map(_entry, bases)), None)
    if found is None:
        is_layer = isinstance(operation, keras.layers.Layer)
        # A layer may do anything; an operation without a row is cheap to run again.
        found = LayerEntry(
            name=kind(operation) or "", residuals="kernel" if is_layer else "cheap"
        )
    return found


def class_name(operation: Any) -> str:
    """Return the class name of an operation, of a registered one that of its entry."""
    found = _REGISTERED.get(type(operation))
    return type(operation).__name__ if found is None else found.class_name


def register_layer(cls: type, like: type | None = None, **columns: Any) -> LayerEntry:
    """Say of a class of layers what the rooms of kerasmem are to know of it.

    A class that names its weights and arguments as one of Keras's does is `like` that
    one: its channels are pruned, its products computed with codes, its memory estimated
    as that one's are. What differs is said by the columns of `LayerEntry`.

    Args:
        cls: a class of layers, not one of Keras's own.
        like: the class of Keras, or a registered one, that computes in the same way;
            None for one that only the columns tell of.
        columns: fields of `LayerEntry` that differ.

    Returns:
        The entry.

    Raises:
        ConfigError: if `cls` is no class of layers, `like` is in no row, or a column is
            not known.

    Example:
        >>> class Halved(keras.layers.Layer):
        ...     def call(self, x):
        ...         return x / 2
        >>> register_layer(Halved, channels="elementwise", residuals="linear").moves
        False
    """
    known = [field.name for field in fields(LayerEntry) if field.name != "name"]
    if not issubclass(cls, keras.layers.Layer) or not set(columns) <= set(known):
        raise ConfigError(
            "A class of layers is registered with columns of the layer table. "
            f"Expected: some of {', '.join(known)}. Received: "
            f"cls={as_received(cls)}, columns {', '.join(columns)}."
        )
    base = LayerEntry(name=f"{cls.__module__}.{cls.__name__}") if like is None else None
    base = base or _entry(like)
    if base is None:
        raise ConfigError(
            "A layer is registered like one that the layer table has. Received: "
            f"like={as_received(like)}. Next: leave `like` out, and say the columns."
        )
    _REGISTERED[cls] = replace(base, **columns)
    return _REGISTERED[cls]


def _entry(cls: Any) -> LayerEntry | None:
    return _REGISTERED.get(cls) or LAYERS.get(_name_of(cls) or "")


def _name_of(cls: type) -> str | None:
    registered = _REGISTERED.get(cls)
    if registered is not None:
        return registered.name
    # By name: Keras exports neither the classes of its operations nor the layers that
    # some of its applications bring along.
    home, _, rest = cls.__module__.partition("keras.src.")
    if home or not rest:
        return None
    return f"{rest.partition('.')[0]}.{cls.__name__}"


def class_names(estimate: str) -> tuple[str, ...]:
    """Return the class names of the entries that one rule estimates the memory of."""
    found = (e.class_name for e in LAYERS.values() if e.estimate == estimate)
    return tuple(dict.fromkeys(found))
