"""A scope in which calls of Keras layers are seen."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from kerasmem.backends.shadow import shadow


@dataclass(eq=False)
class LayerCall:
    """One call of a layer, of its inputs before it and of its outputs after it.

    Args:
        layer: the layer.
        run: runs the layer on what it was called with, arguments of its own by name in
            place of these; the hooks that others put on it run too.
        args: what it is called with, backend tensors.
        kwargs: likewise, with what Keras adds, such as `mask`.
        outputs: what it returned, None before it has run.
    """

    layer: Any
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any = None

    @property
    def x(self) -> Any:
        """The first thing that it is called on."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()))


See = Callable[[LayerCall], Any]


@contextmanager
def observing(
    layers: Iterable[Any], *, inputs: See | None = None, outputs: See | None = None
) -> Iterator[None]:
    """Return a scope in which calls of layers are seen, whoever makes them.

    A layer that is called several times is seen as often. A layer that is called with
    symbols, to trace it, is seen with symbols.

    Args:
        layers: the layers; afterwards they are as before.
        inputs: sees each call before the layer runs. What it returns, if not None, is
            what the call gives: the layer does not run then. One that has run the
            layer returns the `LayerCall`, with its outputs.
        outputs: sees each call after the layer ran.
    """
    watch = partial(_watched, inputs, outputs)
    with ExitStack() as hooks:
        for layer in {id(layer): layer for layer in layers}.values():
            for method in _methods(layer):
                hooks.callback(shadow(layer, method, partial(watch, layer)))
        yield


def _methods(layer: Any) -> list[str]:
    quantized = isinstance(
        layer.dtype_policy, keras.dtype_policies.QuantizedDTypePolicy
    )
    return ["quantized_call", "call"] if quantized else ["call"]


def _watched(
    inputs: See | None,
    outputs: See | None,
    layer: Any,
    original: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    call = LayerCall(layer, partial(original, *args, **kwargs), args, kwargs)
    given = None if inputs is None else inputs(call)
    if given is not None:
        return given.outputs if given is call else given
    call.outputs = call.run()
    if outputs is not None:
        outputs(call)
    return call.outputs
