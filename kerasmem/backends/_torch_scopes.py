"""Tells, while a Keras model trains on torch, which layer is at work in which phase."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import keras
import torch

from kerasmem.backends.profile import Followed
from kerasmem.backends.shadow import shadow

Say = Callable[[str, str | None], None]
"""Called as `say(phase, layer)` whenever one of them changes."""


def follow(followed: Followed, say: Say) -> Callable[[], None]:
    """Have `say` called from now on; return the undo."""
    model, scopes = followed.model, _Scopes(say)
    with ExitStack() as hooks:
        for layer, path in followed.layers:
            hooks.callback(shadow(layer, "call", scopes.around_call(path or None)))
        hooks.callback(shadow(model, "compute_loss", scopes.around_loss))
        hooks.callback(shadow(model.optimizer, "apply", scopes.around_update))
        say("input", None)
        return hooks.pop_all().close


class _Scopes:
    def __init__(self, say: Say) -> None:
        self._say = say
        self._layers: list[str | None] = []
        self._hooked: set[int] = set()

    def around_call(self, path: str | None) -> Callable:
        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            outside = self._layers[-1] if self._layers else None
            if not self._layers:
                self._hooked.clear()  # a new step
            # Once its gradient is there, the layer around this one goes on.
            self._hook((args, kwargs), outside)
            self._layers.append(path)
            self._say("forward", path)
            try:
                outputs = original(*args, **kwargs)
            finally:
                self._layers.pop()
                self._say("forward", outside)
            self._hook(outputs, path)
            return outputs

        return call

    def around_loss(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(*args, **kwargs)
        self._hook(loss, None)
        return loss

    def around_update(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._say("optimizer", None)
        try:
            return original(*args, **kwargs)
        finally:
            self._say("input", None)

    def _hook(self, nest: Any, layer: str | None) -> None:
        """Say `layer` when the backward phase comes to a tensor in `nest`."""
        for tensor, node in _with_gradient(nest):
            # The innermost layer comes first, and is the one to be told. Private:
            # tensors of one operation share nothing else that can be kept.
            number = node._sequence_nr()
            if number not in self._hooked:
                self._hooked.add(number)
                tensor.register_hook(lambda _: self._say("backward", layer))


def _with_gradient(nest: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    for leaf in keras.tree.flatten(nest):
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
            yield leaf, leaf.grad_fn
