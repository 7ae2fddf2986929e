"""Activation policy: changes of the saved activations during training."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from kerasmem.errors import ModelError
from kerasmem.types import Model


class Residuals(Enum):
    """Inputs of a recomputed segment that are saved for the backward pass."""

    ALL = "all inputs"
    EIGHT_BITS = "eight-bit residuals of a layer"
    NO_FLOATS = "inputs that are not floats"


@dataclass(frozen=True, eq=False)
class RecomputedSegment:
    """Calls that are recomputed together in the backward pass."""

    nodes: tuple[Any, ...]
    residuals: Residuals


@dataclass(frozen=True, eq=False)
class ActivationPolicy:
    """Activation policy of a model.

    `function` is the public name of the function that created the policy. `apply` is a
    module-level function that applies the policy to an equal model in place.
    """

    function: str
    apply: Callable[[Any, Mapping[str, Any]], None]
    settings: Mapping[str, Any]
    segments: tuple[RecomputedSegment, ...]


_POLICIES: WeakKeyDictionary[Any, ActivationPolicy] = WeakKeyDictionary()


def set_policy(model: Model, policy: ActivationPolicy) -> Callable[[], object]:
    """Records the activation policy of `model`. Returns the undo."""
    _POLICIES[model] = policy
    return partial(_POLICIES.pop, model)


def policy_of(model: Model) -> ActivationPolicy | None:
    """Returns the activation policy of a model, or None."""
    return _POLICIES.get(model)


@contextmanager
def assumed_policy(model: Model, policy: ActivationPolicy) -> Iterator[None]:
    """Sets the policy of a model without a policy in the scope, for an estimate."""
    undo = set_policy(model, policy)
    try:
        yield
    finally:
        undo()


def check_one_policy(model: Model, function: str) -> None:
    """Checks that a model has no activation policy of another function.

    A copy would lose this policy.
    """
    policy = policy_of(model)
    if policy is not None and policy.function != function:
        raise ModelError(
            "A model can have only one activation policy. Expected: a model that "
            f"stores its activations unchanged. Received: {model.name!r}, changed by "
            f"`{policy.function}` or by a memory plan. Next: call `{function}` with "
            "the original model, or continue with this one."
        )


def policy_settings(model: Model) -> dict[str, Any] | None:
    """Returns the input of `apply_policy` in another process, or None."""
    policy = policy_of(model)
    if policy is None:
        return None
    task = f"{policy.apply.__module__}:{policy.apply.__name__}"
    return {"task": task, "settings": dict(policy.settings)}


def apply_policy(model: Model, settings: Mapping[str, Any] | None) -> None:
    """Applies the policy described by `policy_settings` to a new model."""
    if settings is not None:
        module, _, function = settings["task"].partition(":")
        apply = getattr(importlib.import_module(module), function)
        apply(model, settings["settings"])
