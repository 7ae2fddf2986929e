"""Variables: those of a compiled step, and the weights of a layer that is built."""

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
    """The shape of a variable, for an optimizer that creates slots for the variable.

    Args:
        shape: the shape.
        dtype: the type of an entry.
        name: the name.
        path: the path.
    """

    overwrite_with_gradient = False
    trainable = True

    def __init__(self, shape: Sequence[int], dtype: str, name: str, path: str) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self.name, self.path = name, path
        self._unique_id = id(self)  # by which the TensorFlow optimizer tells variables

    @classmethod
    def of(cls, variable: Variable, dtype: str | None = None) -> Any:
        """Return the shape of a variable, with another type if one is given."""
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

    On JAX a step is a pure function: only what rides among the optimizer's
    variables survives it. On the other backends any variable will do. The state
    never reaches a checkpoint.

    Args:
        variable: the `keras.Variable` to read and assign inside the step.
        to_numpy: turns the framework's own variable in it into an array. Keras does
            so with a deprecation warning of NumPy, on TensorFlow and torch.
    """

    def __init__(
        self, variable: Variable, to_numpy: Callable[[Any], np.ndarray]
    ) -> None:
        self.variable = variable
        self._to_numpy = to_numpy

    def read(self) -> np.ndarray:
        """Return a copy of the current value; call it between epochs only."""
        return self._to_numpy(self.variable.value).copy()

    def write(self, value: np.ndarray) -> None:
        """Set the value; call it between epochs only."""
        self.variable.assign(value)

    def release(self) -> None:
        """Take the variable out of the optimizer again; a second call is a no-op."""


class VariableBackend(ABC):
    """What a framework makes of variables and their values."""

    hands_state_on: bool = False
    """Whether a step gets all variables and gives them back, as on JAX."""

    lazy_values: type[LazyValues]
    """How a variable comes by a value that it had not."""

    @abstractmethod
    def step_state(
        self, optimizer: Optimizer, value: np.ndarray, name: str, like: Any = None
    ) -> StepState:
        """Return a state that starts as `value` and rides in compiled steps.

        On JAX call it before the step is traced; elsewhere also while it is.

        Args:
            optimizer: the optimizer that the steps update with.
            value: its first value.
            name: its name.
            like: a variable that it is laid out as over several devices; None for a
                copy on each.
        """

    def copies_for_step(self, variables: Iterable[Any]) -> list[Any]:
        """Return variables that stand for others inside a compiled step.

        Empty where a step reads the variables themselves. A compiled step of JAX sees
        only the state that is handed to it, and gives the memory of that state away,
        for good if the step is interrupted: so it takes copies.
        """
        return []

    def read_only_array(self, tensor: Tensor) -> np.ndarray:
        """Return a tensor's value, not to be written to: no copy if it is on a CPU."""
        return ops.convert_to_numpy(tensor)

    def masked(self, value: Any, mask: Tensor) -> Any:
        """Return what a variable becomes, with zeros where `mask` is False.

        Args:
            value: a float tensor, which may be overwritten.
            mask: a bool tensor of its shape.
        """
        # With zeros that are made of one number: half the time of an array of them.
        return ops.where(mask, value, ops.zeros((), value.dtype))

    def replicating(self, model: Model) -> AbstractContextManager[Any]:
        """Return a scope in which a variable is made for every replica of a model."""
        return nullcontext()

    def sharing_of(self, strategy: Any | None) -> tuple[int, int]:
        """Return the number of devices that train a model, and of parts of a batch."""
        return 1, 1

    def layout_of(self, variable: Variable) -> Any | None:
        """Return how devices hold a variable, None where each has all of it.

        Returns:
            What has `shard_shape(shape)`: the shape of what one device holds.
        """
        return None

    def distribution_config(self) -> dict[str, Any] | None:
        """Return plain data of which `distributed` makes the distribution that is set.

        None where there is none, or where each replica runs a step of its own.
        """
        return None

    def distributed(
        self, config: Mapping[str, Any] | None
    ) -> AbstractContextManager[Any]:
        """Return a scope with a distribution over as many devices of this process."""
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
"""Saves what a step changes besides variables; returns what restores it."""

_EXTRA_STATE: WeakKeyDictionary[Any, list[WeakMethod[SaveState]]] = WeakKeyDictionary()


def register_state(optimizer: Optimizer, save: SaveState) -> Callable[[], None]:
    """Have `save` called whenever a training is copied; return the undo.

    Not on JAX: extra state is among the optimizer's variables there.

    Args:
        optimizer: that of the training.
        save: a method, called between steps as long as its object lives.
    """
    method = WeakMethod(save)
    _EXTRA_STATE.setdefault(optimizer, []).append(method)
    return partial(_unregister, optimizer, method)


def saved_state(optimizer: Optimizer) -> list[Callable[[], None]]:
    """Return what restores all that is registered with an optimizer."""
    methods = [method() for method in _EXTRA_STATE.get(optimizer, ())]
    return [save() for save in methods if save is not None]


def _unregister(optimizer: Optimizer, method: WeakMethod[SaveState]) -> None:
    methods = _EXTRA_STATE.get(optimizer, [])
    methods[:] = [other for other in methods if other is not method]


def exchange_weight(layer: Layer, attribute: str, old: Any, new: Any) -> None:
    """Put another weight in the place of one that a built layer has."""
    # A built layer is locked, and Keras offers no public way to exchange a weight; its
    # own `quantize` does the same.
    layer._untrack_variable(old)
    if keras.backend.backend() == "tensorflow":
        # TensorFlow keeps a list of its own, and with it the float weight alive.
        layer._delete_tracking(attribute)
    object.__setattr__(layer, attribute, new)


@contextmanager
def unlocked(layer: Layer) -> Iterator[None]:
    """Return a scope in which a built layer takes more variables and layers."""
    # See `exchange_weight`: the lock is Keras's own, and has to be opened for a moment.
    was_locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        yield
    finally:
        if was_locked:
            layer._tracker.lock()


def forget_float_weights(layers: list[Any]) -> None:
    """Drop the references to replaced weights that the layers around them keep."""
    if keras.backend.backend() != "torch":
        return
    modules = (module for layer in layers for module in layer.modules())
    for module in {id(m): m for m in modules}.values():
        if isinstance(module, keras.layers.Layer):
            # On torch every layer keeps a table of the parameters of all layers inside
            # it, made when it was built. This remakes the table.
            module._track_variables()
