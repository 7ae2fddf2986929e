"""Activation policy: changes of the saved activations during training."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary, ref

from kerasmem.errors import ModelError
from kerasmem.graph.segments import Segment, recomputation, recompute
from kerasmem.types import Model


class Residuals(Enum):
    """Inputs of a recomputed segment that are saved for the backward pass."""

    ALL = "all inputs"
    EIGHT_BITS = "eight-bit residuals of a layer"
    NO_FLOATS = "inputs that are not floats"


@dataclass(frozen=True, eq=False)
class SegmentPolicy:
    """How a segment of a graph runs in training.

    Args:
        segment: The calls.
        recomputed: Whether the calls run again in the backward pass.
        store: How the inputs of a recomputed segment are stored. None if unchanged.
    """

    segment: Segment
    recomputed: bool
    store: Any | None = None

    @property
    def nodes(self) -> tuple[Any, ...]:
        """The calls of the segment."""
        return self.segment.nodes

    @property
    def residuals(self) -> Residuals:
        """Saved inputs of a recomputed segment."""
        return Residuals.ALL if self.store is None else self.store.residuals


@dataclass(frozen=True, eq=False)
class GraphPolicy:
    """The segments of a model or opened layer, which is not kept alive."""

    owner: ref[Any]
    segments: tuple[SegmentPolicy, ...]

    @property
    def model(self) -> Any:
        """The model or opened layer."""
        return self.owner()


@dataclass(frozen=True, eq=False)
class ActivationPolicy:
    """Activation policy of a model.

    `function` is the public name of the function that created the policy. `apply` is a
    module-level function that applies the policy to an equal model in place. `graphs`
    contains the model and its nested models, as far as they change.
    """

    function: str
    apply: Callable[[Any, Mapping[str, Any]], object]
    settings: Mapping[str, Any]
    graphs: tuple[GraphPolicy, ...]

    @property
    def segments(self) -> tuple[SegmentPolicy, ...]:
        """All recomputed segments."""
        each = (one for graph in self.graphs for one in graph.segments)
        return tuple(one for one in each if one.recomputed)


_POLICIES: WeakKeyDictionary[Any, ActivationPolicy] = WeakKeyDictionary()


def train_by(model: Model, policy: ActivationPolicy) -> Callable[[], None]:
    """Makes a model train by a policy. Returns the undo."""
    with ExitStack() as undo:
        _POLICIES[model] = policy
        undo.callback(_POLICIES.pop, model, None)
        for graph in policy.graphs:
            pairs = [
                (one.segment, recomputation(model, one.store))
                if one.recomputed
                else (one.segment, None)
                for one in graph.segments
            ]
            if any(one.recomputed for one in graph.segments):
                undo.callback(recompute(graph.model, pairs))
        return undo.pop_all().close


def policy_of(model: Model) -> ActivationPolicy | None:
    """Returns the activation policy of a model, or None."""
    return _POLICIES.get(model)


@contextmanager
def assumed_policy(model: Model, policy: ActivationPolicy) -> Iterator[None]:
    """Records a policy of a model in the scope."""
    _POLICIES[model] = policy
    try:
        yield
    finally:
        _POLICIES.pop(model, None)


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
