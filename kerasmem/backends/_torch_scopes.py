"""Tells, while a Keras model trains on torch, which layer is at work in which phase."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import keras
import torch

from kerasmem.backends.gradients import around_apply
from kerasmem.backends.observing import LayerCall, observing
from kerasmem.backends.profile import Followed
from kerasmem.backends.shadow import shadow

Say = Callable[[str, str | None], None]
"""Called as `say(phase, layer)` whenever one of them changes."""


def follow(followed: Followed, say: Say) -> Callable[[], None]:
    """Have `say` called from now on; return the undo."""
    model, scopes = followed.model, _Scopes(say)
    with ExitStack() as hooks:
        paths = {id(layer): path or None for layer, path in followed.layers}
        layers = [layer for layer, _ in followed.layers]
        run = partial(scopes.run, paths)
        hooks.enter_context(observing(layers, inputs=run))
        hooks.callback(shadow(model, "compute_loss", scopes.around_loss))
        hooks.callback(around_apply(model.optimizer, scopes.around_update))
        say("input", None)
        return hooks.pop_all().close


class _Scopes:
    def __init__(self, say: Say) -> None:
        self._say = say
        self._layers: list[str | None] = []
        self._hooked: set[int] = set()

    def run(self, paths: Mapping[int, str | None], call: LayerCall) -> LayerCall:
        """Run a layer; `paths` has its path by its `id`."""
        path = paths[id(call.layer)]
        outside = self._layers[-1] if self._layers else None
        if not self._layers:
            self._hooked.clear()  # a new step
        # Once its gradient is there, the layer around this one goes on.
        self._hook((call.args, call.kwargs), outside)
        self._layers.append(path)
        self._say("forward", path)
        try:
            call.outputs = call.run()
        finally:
            self._layers.pop()
            self._say("forward", outside)
        self._hook(call.outputs, path)
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
