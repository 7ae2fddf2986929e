"""Wrap a method of one object, and unwrap it again in any order."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from kerasmem.types import Layer

Wrapper = Callable[..., Any]
"""Called as `wrapper(original, *args, **kwargs)` in place of the method."""


class _Chain:
    """What stands in an object's `__dict__` in place of a method."""

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
    """Put `wrapper` before the method `name` of this one object; return the undo.

    Several wrappers of one method may be undone in any order; with the last one the
    object is as it was. Undoing twice is a no-op.

    Args:
        owner: the object; its class is left alone.
        name: name of the method.
        wrapper: called as `wrapper(original, *args, **kwargs)`; the latest wrapper
            runs first.

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
        # Past the owner's __setattr__: Keras and torch track what is set there.
        object.__setattr__(owner, name, chain)
    chain.wrappers.append(wrapper)
    return partial(_unwrap, owner, name, chain, wrapper)


def call_before(
    owner: Any, name: str, observer: Callable[[], None]
) -> Callable[[], None]:
    """Call `observer()` before every call of the method `name`; return the undo.

    Args:
        owner: the object, or the module, that has the method.
        name: name of the method.
        observer: what it raises is raised from the call.
    """

    def observed(original: Any, *args: Any, **kwargs: Any) -> Any:
        observer()
        return original(*args, **kwargs)

    # No issue known: Keras 3.15 tells no callback of a `fit` that was broken off, nor
    # frameworks of counters that are set back.
    return patch_method(owner, name, observed)


def change_class(owner: Any, cls: type) -> Callable[..., None]:
    """Change the class of an object in place; its attributes stay. Return the undo.

    Args:
        owner: the object, which the undo does not keep alive.
        cls: its new class.

    Returns:
        A function that gives the object its class back, or a copy of it that is handed
        in.
    """
    before, alive = type(owner), weakref.ref(owner)
    # Not `setattr`: that of Keras tracks what is set.
    object.__setattr__(owner, "__class__", cls)

    def undo(other: Any = None) -> None:
        owner = alive() if other is None else other
        if owner is not None:
            object.__setattr__(owner, "__class__", before)

    return undo


def nothing_to_undo() -> None:
    """Do nothing: the undo of a patch that was not needed."""


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


def observe_calls(
    layers: Iterable[Any], *, inputs: See | None = None, outputs: See | None = None
) -> Callable[[], None]:
    """Have calls of layers seen from now on, whoever makes them; return the undo.

    A layer that is called several times is seen as often. A layer that is called with
    symbols, to trace it, is seen with symbols.

    Args:
        layers: the layers; after the undo they are as before.
        inputs: sees each call before the layer runs. What it returns, if not None, is
            what the call gives: the layer does not run then. One that has run the
            layer returns the `LayerCall`, with its outputs.
        outputs: sees each call after the layer ran.
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
    """Return a scope in which calls of layers are seen, see `observe_calls`."""
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
