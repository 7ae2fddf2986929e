"""Models that train otherwise than their layers say, and how."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

from kerasmem.errors import ModelError


class Kept(Enum):
    """What waits for the backward pass of what enters a piece."""

    AS_IT_IS = "all of it"
    PACKED = "what a layer made of it, in eight bits"
    NOTHING = "only what is no float"


@dataclass(frozen=True, eq=False)
class Piece:
    """Calls that are computed again as one when their gradients are.

    Args:
        nodes: the calls in the graph of the model, or of a model inside of it.
        kept: what waits of what enters them.
    """

    nodes: tuple[Any, ...]
    kept: Kept


@dataclass(frozen=True, eq=False)
class Treatment:
    """How a model trains.

    Args:
        room: what made it so, by the name that it has for the user.
        treat: function of a module that does the same to an equal model, in place.
        settings: what that takes besides, ready for JSON.
        pieces: what is computed again.
    """

    room: str
    treat: Callable[[Any, Mapping[str, Any]], None]
    settings: Mapping[str, Any]
    pieces: tuple[Piece, ...]


_TREATMENTS: WeakKeyDictionary[Any, Treatment] = WeakKeyDictionary()


def note(model: Any, treatment: Treatment) -> None:
    """Have it known that `model` trains like this."""
    _TREATMENTS[model] = treatment


def treatment_of(model: Any) -> Treatment | None:
    """Return how a model trains, None if as its layers say."""
    return _TREATMENTS.get(model)


@contextmanager
def assumed(model: Any, treatment: Treatment) -> Iterator[None]:
    """Have an untreated model estimated as if it trained like this, in a scope."""
    _TREATMENTS[model] = treatment
    try:
        yield
    finally:
        del _TREATMENTS[model]


def check_untreated(model: Any, room: str) -> None:
    """Raise if the model was treated already, by something else than `room`.

    Raises:
        ModelError: if it was: a copy would train as its layers say again.
    """
    found = treatment_of(model)
    if found is not None and found.room != room:
        raise ModelError(
            "A model keeps less for its backward pass in one way only. Expected: a "
            f"model that trains as its layers say. Received: {model.name!r}, made by "
            f"`{found.room}`. Next: call `{room}` with the model that was given to "
            f"`{found.room}`, or go on with what that made."
        )


def told(model: Any) -> dict[str, Any] | None:
    """Return what `treat_again` needs in another process, None for a plain model."""
    found = treatment_of(model)
    if found is None:
        return None
    task = f"{found.treat.__module__}:{found.treat.__name__}"
    return {"task": task, "settings": dict(found.settings)}


def treat_again(model: Any, words: Mapping[str, Any] | None) -> None:
    """Have a model that was made anew train as the one that `told` told of."""
    if words is not None:
        module, _, function = words["task"].partition(":")
        getattr(importlib.import_module(module), function)(model, words["settings"])
