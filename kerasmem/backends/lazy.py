"""Variables without a value until somebody looks at it.

Keras makes a variable's first value at once. Here the variable is of a class that knows
name, shape and dtype, and remembers an array over a file. The first who asks for the
value makes it one of Keras's own class.
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
    """How a framework comes by the value of a variable that had none."""

    adopts: bool = False
    """Whether an array becomes a tensor without a copy: then at once, for nothing."""

    def why_not(self) -> str | None:
        """Return why variables cannot be without a value here, None if they can."""
        return None

    def placeholder(self, variable: Variable) -> Any | None:
        """Return a tensor without memory that is there first; None to do without."""
        return None

    def outside_of_traces(self) -> AbstractContextManager[Any]:
        """Return a scope in which a tensor is a real one, whatever is being traced."""
        return nullcontext()

    @abstractmethod
    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return what has a shape and a type, and no memory: nobody looks at it."""

    def fill(self, variable: Variable, value: Any) -> None:
        """Give a variable of Keras's own class its first value."""
        # Private, as in all backends: what Keras calls to give the first value.
        variable._initialize(variable._convert_to_tensor(value, variable._dtype))

    def lend(self, variable: Variable, array: np.ndarray) -> Any:
        """Return a tensor to compute with in the place of a variable's value.

        Args:
            variable: it goes on having none.
            array: the value, over a file.
        """
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
    """Return a scope in which a variable with an initializer gets no value yet.

    Args:
        values: of the framework.
        described: True for variables that only have a shape and a type, in the scope
            and after it: one that an array over a file is assigned never gets memory,
            and has no value to compute with. Its array is its `first_value`.
        blank: True, with `described`, where there are no files: nor has one that is
            assigned nothing a value.
        settled: True to give what was assigned nothing its first value at the end.
        at_rest: where variables go on having their values, in the scope and after it,
            whatever they are assigned: each who asks for one is lent it. Scopes within
            this one do the same, but for those of described variables.
        assigned: False, with `at_rest`, where variables may keep their first values:
            who looks at one gets it.
    """
    cls = keras.Variable
    # Private: the one place where every backend makes a value by an initializer.
    name = "_initialize_with_initializer"
    with _ONE_THREAD:
        is_inherited = name not in vars(cls)
        original = getattr(cls, name)
        if not described:
            at_rest = at_rest or next(reversed(_AT_REST), None)
        thread = threading.get_ident()
        scope = _Scope(values, original, thread, described, at_rest, assigned, blank)
        # No issue known: Keras 3.15 defers values in a `StatelessScope` alone, which
        # takes assignments away as well.
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
    """Return the value that a variable has or would get, and make none its own.

    Args:
        variable: any `keras.Variable`.

    Returns:
        A tensor, or the array over a file that it was assigned.
    """
    state = vars(variable).get(_STATE)
    if state is None:
        return variable.value
    return _first(variable, state) if state.source is None else state.source


def source_at_rest(variable: Variable) -> MappedArray | None:
    """Return the array over a file in which a variable has its value, if it does."""
    state = vars(variable).get(_STATE)
    return None if state is None or state.scope.at_rest is None else state.source


def array_at_rest(variable: Variable) -> np.ndarray | None:
    """Return the value that a variable has in a file to read, None if it has none."""
    source = source_at_rest(variable)
    if source is None:
        return None
    return vars(variable)[_STATE].scope.at_rest.array(source)


def kept_at_rest(array: np.ndarray) -> np.ndarray:
    """Return an array, over a file where variables have their values in files."""
    files = next(reversed(_AT_REST), None)
    mapped_array = None if files is None else files.keep(array)
    return array if mapped_array is None else mapped_array


def is_made_of_zeros(variable: Variable) -> bool:
    """Return whether a variable has no value yet, and would get zeros."""
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
"""Of each scope that is open, the innermost last."""


class _Lazy:
    """What a variable is before `keras.Variable`, until it has a value."""

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
            # Only shapes are asked for: it may be assigned a value yet.
            own_value = vars(self).get(_VALUE)
            return _first(self, state) if own_value is None else own_value
        _settle(self)
        return self._value if _STATE in vars(self) else vars(self)[_VALUE]

    @_value.setter
    def _value(self, value: Any) -> None:
        vars(self)[_VALUE] = value

    def numpy(self) -> Any:
        """Return the value as an array; a first value is not made its own by that."""
        state = vars(self).get(_STATE)
        if state is None or not state.scope.is_described or state.source is not None:
            return super().numpy()  # type: ignore[misc]
        if is_made_of_zeros(self):
            zero = np.zeros((), keras.backend.standardize_dtype(self._dtype))
            return np.broadcast_to(zero, self._shape).view(MappedArray)
        return keras.ops.convert_to_numpy(_first(self, state))

    def assign(self, value: Any) -> Any:
        """Remember an array over a file; assign any other as ever."""
        if in_stateless_scope():  # of a trace, whose tensors are no values
            return super().assign(value)  # type: ignore[misc]
        if isinstance(value, MappedArray) and _fits(self, value):
            state = vars(self)[_STATE]
            # The initializer is needed no more, and may hold on to another weight.
            state.source, state.initializer = value, keras.initializers.Zeros()
            return value
        if isinstance(value, MappedArray) and vars(self)[_STATE].scope.is_described:
            # No file tells how much memory its arrays may take here.
            raise ValueError(
                f"The file has an array of shape {value.shape} and type {value.dtype} "
                f"for a weight of shape {tuple(self._shape)} and type {self._dtype}."
            )
        if _fits(self, value):  # then no first value is made
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
        # What another thread makes has its value, and what is small.
        scope.original(variable, initializer)
        return
    cls = type(variable)
    placeholder = scope.values.placeholder(variable)
    if placeholder is not None:
        variable._initialize(placeholder)
    # No issue known: a layer of Keras 3.15 makes variables of no other class.
    become_plain = change_class(variable, _lazy_form(cls))
    vars(variable)[_STATE] = _State(scope, initializer, become_plain)
    scope.deferred.append(weakref.ref(variable))


@functools.cache
def _lazy_form(cls: type) -> type:
    return type(f"Lazy{cls.__name__}", (_Lazy, cls), {"__module__": __name__})


def _begin_with(variable: Variable, value: Any) -> Any:
    with _SETTLING:
        state = vars(variable).get(_STATE)
        if state is None:  # another thread was first
            return variable.assign(value)
        values, files = state.scope.values, state.scope.at_rest
        mapped_array = None if files is None else files.keep(value)
        if mapped_array is not None:
            return variable.assign(mapped_array)
        with values.outside_of_traces():
            # Laid out as it is: a sum in another order has other last bits.
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
        if state is None:  # another thread was first
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
    # Whoever has read the class before finds the value all the same.
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
