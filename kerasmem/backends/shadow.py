"""Wrap a method of one object, and unwrap it again in any order."""

from collections.abc import Callable
from functools import partial
from typing import Any

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


def shadow(owner: Any, name: str, wrapper: Wrapper) -> Callable[[], None]:
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
        >>> undo = shadow(greeter, "greet", lambda original: original().upper())
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

    return shadow(owner, name, observed)


def _unwrap(owner: Any, name: str, chain: _Chain, wrapper: Wrapper) -> None:
    chain.wrappers[:] = [kept for kept in chain.wrappers if kept is not wrapper]
    if chain.wrappers or vars(owner).get(name) is not chain:
        return
    if chain.was_inherited:
        object.__delattr__(owner, name)
    else:
        object.__setattr__(owner, name, chain.original)
