"""Variables whose values are created on first use.

Keras creates the value of a variable immediately. A lazy variable has a subclass with
name, shape and dtype, and optionally an array over a file. The first read creates the
value and restores the original class.
"""

import functools
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

# Private: whether an assignment goes to a scope and not to the variable.
from keras.src.backend.common.stateless_scope import (  # noqa: TID251
    in_stateless_scope,
)

from kerasmem.backends.mapped import MappedArray
from kerasmem.backends.patching import change_class
from kerasmem.types import Variable

if TYPE_CHECKING:
    from kerasmem.backends.at_rest import Offloaded


class LazyValues(ABC):
    """Creation of values for lazy variables of a framework."""

    adopts: bool = False
    """Whether an array becomes a tensor without a copy, and therefore immediately."""

    def why_not(self) -> str | None:
        """Return the reason why lazy variables are unsupported, or None."""
        return None

    def placeholder(self, variable: Variable) -> Any | None:
        """Return a tensor without memory as the initial value, or None."""
        return None

    def outside_of_traces(self) -> AbstractContextManager[Any]:
        """Return a context in which tensors are concrete, even in a trace."""
        return nullcontext()

    @abstractmethod
    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a tensor-like object with shape and dtype, without memory."""

    def fill(self, variable: Variable, value: Any) -> None:
        """Set the first value of a variable."""
        # Private: the method with which Keras sets the first value on all backends.
        variable._initialize(variable._convert_to_tensor(value, variable._dtype))

    def lend(self, variable: Variable, array: np.ndarray) -> Any:
        """Return a temporary tensor for the value of a variable."""
        return variable._convert_to_tensor(array, variable._dtype)


@contextmanager
def lazy_variables(
    values: LazyValues,
    *,
    described: bool = False,
    blank: bool = False,
    settled: bool = False,
    at_rest: "Offloaded | None" = None,
    assigned: bool = True,
) -> Iterator[None]:
    """Return a context in which variables with an initializer are lazy.

    Args:
        values: The `LazyValues` of the framework.
        described: If True, variables have only shape and dtype, also after the context.
            An assigned array over a file becomes the `first_value`.
        blank: With `described`, whether variables without an array have no value.
        settled: Whether to create the remaining values at the end.
        at_rest: Files for offloaded values, also after the context and after
            assignments. Reads return temporary tensors. Applies to nested contexts.
        assigned: With `at_rest`, False if variables may keep their first values.
    """
    cls = keras.Variable
    # Private: every backend creates initial values in this method only.
    name = "_initialize_with_initializer"
    with _ONE_THREAD:
        is_inherited = name not in vars(cls)
        original = getattr(cls, name)
        if not described:
            at_rest = at_rest or next(reversed(_AT_REST), None)
        thread = threading.get_ident()
        scope = _Scope(values, original, thread, described, at_rest, assigned, blank)
        # No issue known: Keras 3.15 defers values only in a `StatelessScope`, which
        # also captures assignments.
        setattr(cls, name, functools.partialmethod(_defer, scope))
        _AT_REST.append(at_rest)
        try:
            yield
        finally:
            _AT_REST.pop()
            scope.is_open = False
            if is_inherited:
                delattr(cls, name)
            else:
                setattr(cls, name, original)
    for variable in () if described else scope.deferred:
        alive = variable()
        if alive is None or source_at_rest(alive) is not None:
            continue
        if values.adopts or settled:
            _settle(alive)


def first_value(variable: Variable) -> Any:
    """Return the current or future value of a variable without creating the value.

    Returns a tensor, or the assigned array over a file.
    """
    state = vars(variable).get(_STATE)
    if state is None:
        return variable.value
    return _first(variable, state) if state.source is None else state.source


def source_at_rest(variable: Variable) -> MappedArray | None:
    """Return the file array of an offloaded variable, or None."""
    state = vars(variable).get(_STATE)
    return None if state is None or state.scope.at_rest is None else state.source


def array_at_rest(variable: Variable) -> np.ndarray | None:
    """Return a readable array of an offloaded variable, or None."""
    source = source_at_rest(variable)
    if source is None:
        return None
    return vars(variable)[_STATE].scope.at_rest.array(source)


def kept_at_rest(array: np.ndarray) -> np.ndarray:
    """Return a file copy of an array inside an offloading context, else the array."""
    files = next(reversed(_AT_REST), None)
    mapped_array = None if files is None else files.keep(array)
    return array if mapped_array is None else mapped_array


def is_made_of_zeros(variable: Variable) -> bool:
    """Return whether a variable has no value yet and a zero initializer."""
    state = vars(variable).get(_STATE)
    return (
        state is not None
        and state.source is None
        and isinstance(state.initializer, keras.initializers.Zeros)
    )


@dataclass
class _Scope:
    values: LazyValues
    original: Callable[..., None]
    thread: int
    is_described: bool = False
    at_rest: "Offloaded | None" = None
    is_open: bool = True
    is_blank: bool = False
    deferred: list[Callable[[], Any]] = field(default_factory=list)


@dataclass
class _State:
    scope: _Scope
    initializer: Callable[..., Any]
    become_plain: Callable[..., None]
    source: MappedArray | None = None

    @property
    def is_without_value(self) -> bool:
        is_settled = self.source is not None or self.scope.is_blank
        return self.scope.is_described and is_settled


_STATE, _VALUE = "_kerasmem_lazy", "_value"
_SETTLING, _ONE_THREAD = threading.RLock(), threading.RLock()
_AT_REST: list["Offloaded | None"] = []
"""Files of the open contexts, innermost last."""


class _Lazy:
    """Mix-in for the class of a variable without a value."""

    _shape: tuple[int, ...]
    _dtype: str

    @property
    def _value(self) -> Any:
        state = vars(self).get(_STATE)
        if state is not None and state.scope.at_rest and state.source is not None:
            with _SETTLING, state.scope.values.outside_of_traces():
                return state.scope.at_rest.value(self, state.source)
        if state is not None and state.is_without_value:
            own_value = vars(self).get(_VALUE)
            nothing = state.scope.values.described
            return nothing(self._shape, self._dtype) if own_value is None else own_value
        if state is not None and state.scope.is_open and state.source is None:
            # In an open context only shapes are needed, and a value may be assigned.
            own_value = vars(self).get(_VALUE)
            return _first(self, state) if own_value is None else own_value
        _settle(self)
        return self._value if _STATE in vars(self) else vars(self)[_VALUE]

    @_value.setter
    def _value(self, value: Any) -> None:
        vars(self)[_VALUE] = value

    def numpy(self) -> Any:
        """Return the value as an array. A read does not create a first value."""
        state = vars(self).get(_STATE)
        if state is None or not state.scope.is_described or state.source is not None:
            return super().numpy()  # type: ignore[misc]
        if is_made_of_zeros(self):
            zero = np.zeros((), keras.backend.standardize_dtype(self._dtype))
            return np.broadcast_to(zero, self._shape).view(MappedArray)
        return keras.ops.convert_to_numpy(_first(self, state))

    def assign(self, value: Any) -> Any:
        """Store an array over a file without reading; assign other values as usual."""
        if in_stateless_scope():  # tensors of a trace are not values
            return super().assign(value)  # type: ignore[misc]
        if isinstance(value, MappedArray) and _fits(self, value):
            state = vars(self)[_STATE]
            # Free the initializer, which may refer to another weight.
            state.source, state.initializer = value, keras.initializers.Zeros()
            return value
        if isinstance(value, MappedArray) and vars(self)[_STATE].scope.is_described:
            # The file must not decide how much memory a described variable uses.
            raise ValueError(
                f"The file has an array of shape {value.shape} and type {value.dtype} "
                f"for a weight of shape {tuple(self._shape)} and type {self._dtype}."
            )
        if _fits(self, value):  # avoids the creation of a first value
            return _begin_with(self, value)
        state = vars(self).get(_STATE)
        if state is not None and state.scope.at_rest is not None:
            return _begin_with(self, _converted(self, value))
        _settle(self)
        return self.assign(value)


def _defer(variable: Variable, scope: _Scope, initializer: Callable[..., Any]) -> None:
    files = scope.at_rest
    is_kept = scope.is_open or (files is not None and files.keeps(variable))
    if threading.get_ident() != scope.thread or not is_kept:
        # Variables of other threads and small variables are not lazy.
        scope.original(variable, initializer)
        return
    cls = type(variable)
    placeholder = scope.values.placeholder(variable)
    if placeholder is not None:
        variable._initialize(placeholder)
    # No issue known: layers of Keras 3.15 create variables of one class only.
    become_plain = change_class(variable, _lazy_form(cls))
    vars(variable)[_STATE] = _State(scope, initializer, become_plain)
    scope.deferred.append(weakref.ref(variable))


@functools.cache
def _lazy_form(cls: type) -> type:
    return type(f"Lazy{cls.__name__}", (_Lazy, cls), {"__module__": __name__})


def _begin_with(variable: Variable, value: Any) -> Any:
    with _SETTLING:
        state = vars(variable).get(_STATE)
        if state is None:  # another thread has assigned a value
            return variable.assign(value)
        values, files = state.scope.values, state.scope.at_rest
        mapped_array = None if files is None else files.keep(value)
        if mapped_array is not None:
            return variable.assign(mapped_array)
        with values.outside_of_traces():
            # Keeps the memory layout, which determines the order of sums.
            values.fill(variable, keras.ops.copy(value) if values.adopts else value)
        _become_plain(variable)
        return value


def _converted(variable: Variable, value: Any) -> Any:
    tensor = variable._convert_to_tensor(value, dtype=variable._dtype)
    if tuple(tensor.shape) != tuple(variable.shape):
        raise ValueError(
            f"A value of shape {tuple(tensor.shape)} was assigned to the weight "
            f"{variable.path!r} of shape {tuple(variable.shape)}."
        )
    return tensor


def _settle(variable: Variable) -> None:
    with _SETTLING:
        state = vars(variable).get(_STATE)
        if state is None:  # another thread has created the value
            return
        values, source = state.scope.values, state.source
        with values.outside_of_traces():
            if source is None:
                first, files = _first(variable, state), state.scope.at_rest
                mapped_array = None if files is None else files.keep(first)
                if mapped_array is not None:
                    variable.assign(mapped_array)
                    return
                values.fill(variable, first)
            else:
                values.fill(variable, source.aligned())
        _become_plain(variable)
        if source is not None and not values.adopts:
            source.release()


def _become_plain(variable: Variable) -> None:
    # Code that has already read the class finds the value in `_value`.
    vars(variable)[_STATE].become_plain(variable)
    del vars(variable)[_STATE]


def _first(variable: Variable, state: _State) -> Any:
    return state.initializer(variable._shape, dtype=variable._dtype)


def _fits(variable: Variable, array: Any) -> bool:
    dtype = getattr(array, "dtype", None)
    if dtype is None:  # a plain number
        return False
    is_alike = variable._dtype == keras.backend.standardize_dtype(dtype)
    return is_alike and tuple(variable.shape) == tuple(array.shape)
