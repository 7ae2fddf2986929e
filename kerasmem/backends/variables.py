"""Extra state of compiled steps, and weights of built layers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakMethod

import keras
import numpy as np
from keras import ops

from kerasmem.backends.lazy import LazyValues
from kerasmem.types import Layer, Model, Optimizer, Tensor, Variable


class VariableShape:
    """The shape of a variable, for an optimizer that creates slots for the variable."""

    overwrite_with_gradient = False
    trainable = True

    def __init__(self, shape: Sequence[int], dtype: str, name: str, path: str) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self.name, self.path = name, path
        self._unique_id = id(self)  # key of a variable in the TensorFlow optimizer

    @classmethod
    def of(cls, variable: Variable, dtype: str | None = None) -> Any:
        """Return the shape of a variable, optionally with another dtype."""
        stored_dtype = str(keras.backend.standardize_dtype(dtype or variable.dtype))
        shape = cls(variable.shape, stored_dtype, variable.name, variable.path)
        shape.trainable = variable.trainable
        with_gradient = getattr(variable, "overwrite_with_gradient", False)
        shape.overwrite_with_gradient = with_gradient
        return shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:  # noqa: FBT001
        return np.zeros((), dtype or "float32")

    def __jax_array__(self) -> Any:
        return keras.ops.zeros(())


class StepState:
    """A variable that a compiled training step may read and assign.

    JAX steps are pure functions, so only the optimizer's variables keep their values.
    On other backends any variable works. Checkpoints do not contain the state. Keras's
    own conversion to NumPy issues a deprecation warning, so `to_numpy` is used.
    """

    def __init__(
        self, variable: Variable, to_numpy: Callable[[Any], np.ndarray]
    ) -> None:
        self.variable = variable
        self._to_numpy = to_numpy

    def read(self) -> np.ndarray:
        """Return a copy of the current value. Only valid between epochs."""
        return self._to_numpy(self.variable.value).copy()

    def write(self, value: np.ndarray) -> None:
        """Set the value. Only valid between epochs."""
        self.variable.assign(value)

    def release(self) -> None:
        """Remove the variable from the optimizer. A second call is a no-op."""


class VariableBackend(ABC):
    """Variables of a framework and their values."""

    hands_state_on: bool = False
    """Whether a step gets and returns all variables, as in JAX."""

    lazy_values: type[LazyValues]
    """Class for values of lazy variables."""

    @abstractmethod
    def step_state(
        self, optimizer: Optimizer, value: np.ndarray, name: str, like: Any = None
    ) -> StepState:
        """Return a state with the initial value `value`, available in compiled steps.

        On JAX, call before the step is traced. The state has the device layout of the
        variable `like`, by default a copy on each device.
        """

    def copies_for_step(self, variables: Iterable[Any]) -> list[Any]:
        """Return copies of variables for use inside a compiled step.

        Empty if steps read the variables themselves. A JAX step reads only its state
        argument and donates the memory, which is lost if the step is interrupted.
        """
        return []

    def read_only_array(self, tensor: Tensor) -> np.ndarray:
        """Return the read-only value of a tensor, without a copy on a CPU."""
        return ops.convert_to_numpy(tensor)

    def masked(self, value: Any, mask: Tensor) -> Any:
        """Return `value` with zeros where `mask` is False, possibly in place."""
        # A broadcast scalar takes half the time of an array of zeros.
        return ops.where(mask, value, ops.zeros((), value.dtype))

    def replicating(self, model: Model) -> AbstractContextManager[Any]:
        """Return a context in which variables have a copy per replica."""
        return nullcontext()

    def sharing_of(self, strategy: Any | None) -> tuple[int, int]:
        """Return the number of training devices and the number of parts of a batch."""
        return 1, 1

    def layout_of(self, variable: Variable) -> Any | None:
        """Return the device layout of a variable, None for a copy on each device.

        `shard_shape(shape)` of the layout is the shape on one device.
        """
        return None

    def distribution_config(self) -> dict[str, Any] | None:
        """Return the current distribution as a config for `distributed`.

        None without a distribution, or if each replica runs a separate step.
        """
        return None

    def distributed(
        self, config: Mapping[str, Any] | None
    ) -> AbstractContextManager[Any]:
        """Return the context of a distribution from its config."""
        return nullcontext()


def hidden_variable(value: np.ndarray, name: str) -> Any:
    """Return a `keras.Variable` with `value` that no layer or optimizer tracks."""
    return keras.Variable(
        value,
        dtype=str(value.dtype),
        trainable=False,
        aggregation="only_first_replica",
        name=name,
    )


SaveState = Callable[[], Callable[[], None]]
"""Saves the non-variable state of a step. Returns a function that restores it."""

_EXTRA_STATE: WeakKeyDictionary[Any, list[WeakMethod[SaveState]]] = WeakKeyDictionary()


def register_state(optimizer: Optimizer, save: SaveState) -> Callable[[], None]:
    """Call `save` whenever a training is copied, and return the undo function.

    Not for JAX, where the optimizer's variables include the extra state. `save` must be
    a bound method and is called between steps while its object exists.
    """
    method = WeakMethod(save)
    _EXTRA_STATE.setdefault(optimizer, []).append(method)
    return partial(_unregister, optimizer, method)


def saved_state(optimizer: Optimizer) -> list[Callable[[], None]]:
    """Return functions that restore the registered state of an optimizer."""
    methods = [method() for method in _EXTRA_STATE.get(optimizer, ())]
    return [save() for save in methods if save is not None]


def _unregister(optimizer: Optimizer, method: WeakMethod[SaveState]) -> None:
    methods = _EXTRA_STATE.get(optimizer, [])
    methods[:] = [other for other in methods if other is not method]


def exchange_weight(layer: Layer, attribute: str, old: Any, new: Any) -> None:
    """Replace a weight of a built layer."""
    # A built layer is locked, and Keras has no public API to replace a weight. Keras's
    # `quantize` uses these functions too.
    layer._untrack_variable(old)
    if keras.backend.backend() == "tensorflow":
        # TensorFlow tracks attributes separately, which would keep the float weight.
        layer._delete_tracking(attribute)
    object.__setattr__(layer, attribute, new)


@contextmanager
def unlocked(layer: Layer) -> Iterator[None]:
    """Return a context in which a built layer accepts new variables and layers."""
    # See `exchange_weight`: there is no public API for Keras's lock.
    was_locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        yield
    finally:
        if was_locked:
            layer._tracker.lock()


def forget_float_weights(layers: list[Any]) -> None:
    """Remove references of outer layers to replaced weights."""
    if keras.backend.backend() != "torch":
        return
    modules = (module for layer in layers for module in layer.modules())
    for module in {id(m): m for m in modules}.values():
        if isinstance(module, keras.layers.Layer):
            # On torch, every layer has a table of all inner parameters from its build.
            # This call updates the table.
            module._track_variables()
