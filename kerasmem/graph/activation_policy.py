"""How a model trains otherwise than its layers say: its activation policy."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

from kerasmem.errors import ModelError


class Residuals(Enum):
    """What is saved for the backward pass of what enters a recomputed segment."""

    ALL = "all of it"
    EIGHT_BITS = "what a layer made of it, in eight bits"
    NO_FLOATS = "only what is no float"


@dataclass(frozen=True, eq=False)
class RecomputedSegment:
    """Calls that are computed again as one when their gradients are.

    Args:
        nodes: the calls in the graph of the model, or of a model inside of it.
        residuals: what is saved of what enters them.
    """

    nodes: tuple[Any, ...]
    residuals: Residuals


@dataclass(frozen=True, eq=False)
class ActivationPolicy:
    """How a model trains.

    Args:
        function: what made it so, by the name that it has for the user.
        apply: function of a module that does the same to an equal model, in place.
        settings: what that takes besides, ready for JSON.
        segments: what is computed again.
    """

    function: str
    apply: Callable[[Any, Mapping[str, Any]], None]
    settings: Mapping[str, Any]
    segments: tuple[RecomputedSegment, ...]


_POLICIES: WeakKeyDictionary[Any, ActivationPolicy] = WeakKeyDictionary()


def set_policy(model: Any, policy: ActivationPolicy) -> None:
    """Have it known that `model` trains like this."""
    _POLICIES[model] = policy


def policy_of(model: Any) -> ActivationPolicy | None:
    """Return how a model trains, None if as its layers say."""
    return _POLICIES.get(model)


@contextmanager
def assumed_policy(model: Any, policy: ActivationPolicy) -> Iterator[None]:
    """Have a model without a policy estimated as if it had this one, in a scope."""
    _POLICIES[model] = policy
    try:
        yield
    finally:
        del _POLICIES[model]


def check_one_policy(model: Any, function: str) -> None:
    """Raise if the model has a policy already, of something else than `function`.

    Raises:
        ModelError: if it has: a copy would train as its layers say again.
    """
    policy = policy_of(model)
    if policy is not None and policy.function != function:
        raise ModelError(
            "A model keeps less for its backward pass in one way only. Expected: a "
            f"model that trains as its layers say. Received: {model.name!r}, made by "
            f"`{policy.function}`. Next: call `{function}` with the model that was "
            f"given to `{policy.function}`, or go on with what that made."
        )


def policy_settings(model: Any) -> dict[str, Any] | None:
    """Return what `apply_policy` needs in another process, None without a policy."""
    policy = policy_of(model)
    if policy is None:
        return None
    task = f"{policy.apply.__module__}:{policy.apply.__name__}"
    return {"task": task, "settings": dict(policy.settings)}


def apply_policy(model: Any, settings: Mapping[str, Any] | None) -> None:
    """Have a model that was made anew train as `policy_settings` told of another."""
    if settings is not None:
        module, _, function = settings["task"].partition(":")
        apply = getattr(importlib.import_module(module), function)
        apply(model, settings["settings"])
