"""What layers take and make, on samples that stream through a model."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from kerasmem.backends import current, shadow


@dataclass(eq=False)
class LayerCall:
    """One call of a layer, of its inputs before it and of its outputs after it.

    Args:
        layer: the layer.
        run: runs the layer on what it was called with; the hooks that others put on it
            run too.
        args: what it is called with, backend tensors.
        kwargs: likewise, with what Keras adds, such as `mask`.
        outputs: what it returned, None before it has run.
    """

    layer: Any
    run: Callable[[], Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any = None

    @property
    def x(self) -> Any:
        """The first thing that it is called on."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()))


See = Callable[[LayerCall], Any]


def observe(
    model: Any,
    batches: Iterable[Any],
    layers: Iterable[Any],
    *,
    inputs: See | None = None,
    outputs: See | None = None,
) -> int:
    """Run a model on samples in inference and show what layers take and make.

    Nothing is kept: a batch is forgotten before the next one comes.

    Args:
        model: a built model.
        batches: its inputs, batch by batch, such as `input_batches` yields.
        layers: layers anywhere in it.
        inputs: see `observing`.
        outputs: see `observing`.

    Returns:
        The number of samples.
    """
    count = 0
    with current().inference(), observing(layers, inputs=inputs, outputs=outputs):
        for batch in batches:
            model(batch, training=False)
            count += len(keras.tree.flatten(batch)[0])
    return count


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
            what the call gives: the layer does not run then.
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
        return given
    call.outputs = call.run()
    if outputs is not None:
        outputs(call)
    return call.outputs
