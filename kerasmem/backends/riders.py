"""What else a training step changes beside the variables of model and optimizer."""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakMethod

Keep = Callable[[], Callable[[], None]]
"""Returns what puts everything back to what it is now."""

_RIDERS: WeakKeyDictionary[Any, list[WeakMethod[Keep]]] = WeakKeyDictionary()


def ride(optimizer: Any, keep: Keep) -> Callable[[], None]:
    """Have `keep` called whenever a training is copied; return the undo.

    Not on JAX: what rides there is among the optimizer's variables.

    Args:
        optimizer: that of the training.
        keep: a method, called between steps as long as its object lives.
    """
    rider = WeakMethod(keep)
    _RIDERS.setdefault(optimizer, []).append(rider)
    return partial(_get_off, optimizer, rider)


def keep_riders(optimizer: Any) -> list[Callable[[], None]]:
    """Return what puts back all that rides with an optimizer."""
    methods = [rider() for rider in _RIDERS.get(optimizer, ())]
    return [keep() for keep in methods if keep is not None]


def _get_off(optimizer: Any, rider: WeakMethod[Keep]) -> None:
    riders = _RIDERS.get(optimizer, [])
    riders[:] = [other for other in riders if other is not rider]
