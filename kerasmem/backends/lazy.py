"""Variables without a value until somebody looks at it.

Keras makes a variable's first value as soon as there is a shape and an initializer.
Here it does not: the variable is of a class in between, which knows name, shape and
dtype. An array over a file that it is assigned is only remembered. The first who asks
for the value gets it made of that, or by the initializer, and from then on the variable
is one of Keras's own class, like any other.
"""

import functools
import mmap
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np


class LazyValues(ABC):
    """How a framework comes by the value of a variable that had none."""

    adopts: bool = False
    """Whether an array becomes a tensor without a copy: then at once, for nothing."""

    def why_not(self) -> str | None:
        """Return why variables cannot be without a value here, None if they can."""
        return None

    def placeholder(self, variable: Any) -> Any | None:
        """Return a tensor without memory that is there first; None to do without."""
        return None

    def outside_of_traces(self) -> AbstractContextManager[Any]:
        """Return a scope in which a tensor is a real one, whatever is being traced."""
        return nullcontext()

    @abstractmethod
    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return what has a shape and a type, and no memory: nobody looks at it."""

    @abstractmethod
    def fill(self, variable: Any, value: Any) -> None:
        """Give a variable of Keras's own class its first value."""


class MappedArray(np.ndarray):
    """An array over a file, whose pages are read when they are looked at."""

    _region: tuple[mmap.mmap, int] | None = None
    name: str | None = None
    """Its path in the file, where somebody noted it. A part of it has none."""

    @classmethod
    def of(
        cls, file: mmap.mmap, start: int, shape: tuple[int, ...], dtype: np.dtype
    ) -> "MappedArray":
        """Return the array that begins at the byte `start` of a file.

        Raises:
            ValueError: if the file ends before it does.
        """
        count = int(np.prod(shape, dtype=np.int64))
        entries = np.frombuffer(file, np.uint8, count * dtype.itemsize, start)
        array = entries.view(dtype).reshape(shape).view(cls)
        array._region = (file, start)
        return array

    @property
    def place(self) -> int | None:
        """The byte of the file where it begins, None if the file has nothing of it."""
        return None if self._region is None else self._region[1]

    def release(self) -> None:
        """Give back the memory of its pages; looked at again, they are read again."""
        if self._region is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        file, start = self._region
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (start + self.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if length > 0:
            file.madvise(mmap.MADV_DONTNEED, first, length)


@contextmanager
def lazy_variables(
    values: LazyValues, *, described: bool = False, settled: bool = False
) -> Iterator[None]:
    """Return a scope in which a variable with an initializer gets no value yet.

    Args:
        values: of the framework.
        described: True for variables that only have a shape and a type, in the scope
            and after it: one that an array over a file is assigned never gets memory,
            and has no value to compute with. Its array is its `first_value`.
        settled: True to give what was assigned nothing its first value at the end.
    """
    cls = keras.Variable
    # Private: the one place where every backend makes a value by an initializer.
    name = "_initialize_with_initializer"
    with _ONE_THREAD:
        inherited = name not in vars(cls)
        original = getattr(cls, name)
        scope = _Scope(values, original, threading.get_ident(), described)
        setattr(cls, name, functools.partialmethod(_defer, scope))
        try:
            yield
        finally:
            scope.is_open = False
            if inherited:
                delattr(cls, name)
            else:
                setattr(cls, name, original)
    for variable in () if described else scope.deferred:
        alive = variable()
        if alive is not None and (values.adopts or settled):
            _settle(alive)


def first_value(variable: Any) -> Any:
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


def described_source(variable: Any) -> MappedArray | None:
    """Return the array over a file that a described variable was assigned, if any."""
    state = vars(variable).get(_STATE)
    return state.source if state is not None and state.scope.is_described else None


def is_made_of_zeros(variable: Any) -> bool:
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
    is_open: bool = True
    deferred: list[Callable[[], Any]] = field(default_factory=list)


@dataclass
class _State:
    scope: _Scope
    initializer: Callable[..., Any]
    source: MappedArray | None = None


_STATE, _VALUE = "_kerasmem_lazy", "_value"
_SETTLING, _ONE_THREAD = threading.RLock(), threading.RLock()


class _Lazy:
    """What a variable is before `keras.Variable`, until it has a value."""

    _shape: tuple[int, ...]
    _dtype: str

    @property
    def _value(self) -> Any:
        state = vars(self).get(_STATE)
        if state is not None and state.scope.is_described and state.source is not None:
            held = vars(self).get(_VALUE)
            nothing = state.scope.values.described
            return nothing(self._shape, self._dtype) if held is None else held
        if state is not None and state.scope.is_open and state.source is None:
            # Only shapes are asked for: it may be assigned a value yet.
            held = vars(self).get(_VALUE)
            return _first(self, state) if held is None else held
        _settle(self)
        return vars(self)[_VALUE]

    @_value.setter
    def _value(self, value: Any) -> None:
        vars(self)[_VALUE] = value

    def assign(self, value: Any) -> Any:
        """Remember an array over a file; assign any other as ever."""
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
        _settle(self)
        return self.assign(value)


def _defer(variable: Any, scope: _Scope, initializer: Callable[..., Any]) -> None:
    if threading.get_ident() != scope.thread:  # what another thread makes has its value
        scope.original(variable, initializer)
        return
    cls = type(variable)
    placeholder = scope.values.placeholder(variable)
    if placeholder is not None:
        variable._initialize(placeholder)
    vars(variable)[_STATE] = _State(scope, initializer)
    variable.__class__ = _lazy_form(cls)
    scope.deferred.append(weakref.ref(variable))


@functools.cache
def _lazy_form(cls: type) -> type:
    return type(f"Lazy{cls.__name__}", (_Lazy, cls), {"__module__": __name__})


def _begin_with(variable: Any, value: Any) -> Any:
    """Let a value of the right shape and type be the first that a variable has."""
    with _SETTLING:
        state = vars(variable).get(_STATE)
        if state is None:  # another thread was first
            return variable.assign(value)
        values = state.scope.values
        with values.outside_of_traces():
            # Laid out as it is: a sum in another order has other last bits.
            values.fill(variable, keras.ops.copy(value) if values.adopts else value)
        _become_plain(variable)
        return value


def _settle(variable: Any) -> None:
    """Make the value of a variable, which becomes one of Keras's own class."""
    with _SETTLING:
        state = vars(variable).get(_STATE)
        if state is None:  # another thread was first
            return
        values, source = state.scope.values, state.source
        with values.outside_of_traces():
            if source is None:
                values.fill(variable, _first(variable, state))
            else:
                values.fill(variable, _aligned(source))
        _become_plain(variable)
        if source is not None and not values.adopts:
            source.release()


def _become_plain(variable: Any) -> None:
    # Whoever has read the class before finds the value all the same.
    variable.__class__ = type(variable).__mro__[2]
    del vars(variable)[_STATE]


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return an array whose entries lie where a framework takes them."""
    plain = array.view(np.ndarray)
    return plain if plain.flags.aligned else plain.copy()


def _first(variable: Any, state: _State) -> Any:
    return state.initializer(variable._shape, dtype=variable._dtype)


def _fits(variable: Any, array: Any) -> bool:
    dtype = getattr(array, "dtype", None)
    if dtype is None:  # a plain number
        return False
    is_alike = variable._dtype == keras.backend.standardize_dtype(dtype)
    return is_alike and tuple(variable.shape) == tuple(array.shape)
