"""Wrappers of methods of single objects, removable in any order."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from kerasmem.types import Layer

Wrapper = Callable[..., Any]
"""Called as `wrapper(original, *args, **kwargs)` instead of the method."""


class _Chain:
    """Replacement of a method in the `__dict__` of an object."""

    def __init__(self, owner: Any, name: str) -> None:
        self.original: Callable[..., Any] = getattr(owner, name)
        self.was_inherited = name not in vars(owner)
        self.wrappers: list[Wrapper] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.original
        for wrapper in self.wrappers:
            call = partial(wrapper, call)
        return call(*args, **kwargs)


def patch_method(owner: Any, name: str, wrapper: Wrapper) -> Callable[[], None]:
    """Wrap a method of one object and return the undo function.

    `wrapper(original, *args, **kwargs)` is called instead of the method. The latest
    wrapper runs first. Wrappers can be removed in any order. A second undo is a no-op.

    Example:
        >>> class Greeter:
        ...     def greet(self):
        ...         return "hello"
        >>> greeter = Greeter()
        >>> undo = patch_method(greeter, "greet", lambda original: original().upper())
        >>> greeter.greet()
        'HELLO'
        >>> undo()
        >>> greeter.greet(), vars(greeter)
        ('hello', {})
    """
    chain = vars(owner).get(name)
    if not isinstance(chain, _Chain):
        chain = _Chain(owner, name)
        # Bypasses `__setattr__`, with which Keras and torch track attributes.
        object.__setattr__(owner, name, chain)
    chain.wrappers.append(wrapper)
    return partial(_unwrap, owner, name, chain, wrapper)


def call_before(
    owner: Any, name: str, observer: Callable[[], None]
) -> Callable[[], None]:
    """Call `observer()` before every call of a method, and return the undo function."""

    def observed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        observer()
        return original(*args, **kwargs)

    # No issue known: Keras 3.15 has no callback hook for a failed `fit`, and frameworks
    # have none for a reset of counters.
    return patch_method(owner, name, observed)


def change_class(owner: Any, cls: type) -> Callable[..., None]:
    """Change the class of an object in place, and return the undo function.

    The undo function accepts a copy of the object. It has only a weak reference.
    """
    before, alive = type(owner), weakref.ref(owner)
    # Bypasses Keras's `__setattr__`, which tracks attributes.
    object.__setattr__(owner, "__class__", cls)

    def undo(other: Any = None) -> None:
        owner = alive() if other is None else other
        if owner is not None:
            object.__setattr__(owner, "__class__", before)

    return undo


def nothing_to_undo() -> None:
    """Do nothing: the undo function of an unnecessary patch."""


def _unwrap(owner: Any, name: str, chain: _Chain, wrapper: Wrapper) -> None:
    chain.wrappers[:] = [other for other in chain.wrappers if other is not wrapper]
    if chain.wrappers or vars(owner).get(name) is not chain:
        return
    if chain.was_inherited:
        object.__delattr__(owner, name)
    else:
        object.__setattr__(owner, name, chain.original)


@dataclass(eq=False)
class LayerCall:
    """One call of a layer with backend tensors, before or after its execution.

    `run` runs the layer and its other hooks, with optional replacements of arguments by
    name. `kwargs` includes the arguments from Keras, such as `mask`.
    """

    layer: Any
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any = None

    @property
    def x(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()))


See = Callable[[LayerCall], Any]


def observe_calls(
    layers: Iterable[Any], *, inputs: See | None = None, outputs: See | None = None
) -> Callable[[], None]:
    """Observe all calls of layers, and return the undo function.

    Symbolic calls and repeated calls of a layer are observed too. `inputs` is called
    before the layer, and a result other than None replaces the call. If `inputs` has
    run the layer, it returns the `LayerCall` with outputs. `outputs` is called after
    the layer.
    """
    watch = partial(_watched, inputs, outputs)
    with ExitStack() as hooks:
        for layer in {id(layer): layer for layer in layers}.values():
            for method in _methods(layer):
                # No issue known: layers of Keras 3.15 have no hooks for their calls.
                hooks.callback(patch_method(layer, method, partial(watch, layer)))
        return hooks.pop_all().close


@contextmanager
def observing(
    layers: Iterable[Any], *, inputs: See | None = None, outputs: See | None = None
) -> Iterator[None]:
    """Return a context that observes calls of layers, see `observe_calls`."""
    undo = observe_calls(layers, inputs=inputs, outputs=outputs)
    try:
        yield
    finally:
        undo()


def _methods(layer: Layer) -> list[str]:
    is_quantized = isinstance(
        layer.dtype_policy, keras.dtype_policies.QuantizedDTypePolicy
    )
    return ["quantized_call", "call"] if is_quantized else ["call"]


def _watched(
    inputs: See | None,
    outputs: See | None,
    layer: Layer,
    original: Callable[..., Any],
    /,  # a layer may have arguments of these names
    *args: Any,
    **kwargs: Any,
) -> Any:
    call = LayerCall(layer, partial(original, *args, **kwargs), args, kwargs)
    replacement = None if inputs is None else inputs(call)
    if replacement is not None:
        return replacement.outputs if replacement is call else replacement
    call.outputs = call.run()
    if outputs is not None:
        outputs(call)
    return call.outputs
