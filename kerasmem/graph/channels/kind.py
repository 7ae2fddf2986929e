"""What an operation of a graph is, for a table of rules."""

from typing import Any


def kind(operation: Any) -> str | None:
    """Return `"layers.Dense"` or `"ops.Add"` for an operation of Keras's own.

    None for a class of somebody else's, a subclass of Keras's too: it may do more.
    """
    # By name: Keras exports neither the classes of its operations nor the layers that
    # some of its applications bring along.
    home, _, rest = type(operation).__module__.partition("keras.src.")
    if home or not rest:
        return None
    return f"{rest.partition('.')[0]}.{type(operation).__name__}"
