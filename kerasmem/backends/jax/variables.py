"""JAX's variables: those that ride in a step, and such that had no value."""

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import keras
import numpy as np

from kerasmem.backends.gradients import innermost
from kerasmem.backends.lazy import LazyValues
from kerasmem.backends.patching import patch_method
from kerasmem.backends.variables import StepState, VariableBackend
from kerasmem.errors import ConfigError
from kerasmem.types import Optimizer, Variable


class JaxLazyValues(LazyValues):
    """An array of JAX is made of one of NumPy when it is used."""

    def why_not(self) -> str | None:
        """Return that NNX keeps values in a place of its own, if it does."""
        return "NNX" if keras.config.is_nnx_enabled() else None

    def outside_of_traces(self) -> AbstractContextManager[Any]:
        """Return a scope in which nothing is traced."""
        return jax.ensure_compile_time_eval()

    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return zeros, which a trace does not make."""
        return jax.numpy.zeros(shape, dtype)


class OptimizerState(StepState):
    """A `StepState` among the optimizer's variables, hidden from checkpoints."""

    def __init__(
        self, optimizer: Optimizer, value: np.ndarray, name: str, like: Any = None
    ) -> None:
        # A loss scaling optimizer takes its own variables from before the update,
        # so the state rides in the optimizer that updates.
        self._optimizer = innermost(optimizer)
        variable = self._optimizer.add_variable(
            shape=value.shape,
            dtype=str(value.dtype),
            # Private: as Keras itself lays out what an optimizer keeps of a variable.
            layout=getattr(like, "_layout", None),
            name=name,
        )
        variable.assign(value)
        super().__init__(variable, np.array)
        # No issue known: all that an update of Keras 3.15 is given is saved as well.
        self._undo = [
            patch_method(owner, method, self._without)
            for owner in {id(o): o for o in (optimizer, self._optimizer)}.values()
            for method in ("save_own_variables", "load_own_variables")
        ]

    def release(self) -> None:
        """Take the variable out of the optimizer, and the hiding with it."""
        while self._undo:
            self._undo.pop()()
        _remove(_tracked(self._optimizer), self.variable)
        self._optimizer._untrack_variable(self.variable)

    def _without(self, original: Any, store: Any) -> Any:
        variables = _tracked(self._optimizer)
        place = _place(variables, self.variable)
        if place is None:
            # Released a moment ago, or left out already: a loss scaling optimizer
            # saves the one inside of it.
            return original(store)
        _remove(variables, self.variable)
        try:
            return original(store)
        finally:
            # Not the list of before: an attachment may release states in `original`.
            if self._undo:
                variables[place:place] = [self.variable]


class JaxVariables(VariableBackend):
    """What JAX makes of variables: a step is handed their values."""

    hands_state_on = True
    lazy_values = JaxLazyValues

    def step_state(
        self, optimizer: Optimizer, value: np.ndarray, name: str, like: Any = None
    ) -> StepState:
        """Return a state among the optimizer's variables."""
        return OptimizerState(optimizer, value, name, like)

    def copies_for_step(self, variables: Iterable[Any]) -> list[Any]:
        """Return copies: the memory of a step's state is given away."""
        return [
            keras.Variable(keras.ops.copy(v.value), dtype=v.dtype, trainable=False)
            for v in variables
        ]

    def sharing_of(self, strategy: Any | None) -> tuple[int, int]:
        """Return the devices of the distribution that is set, and its batch axis."""
        distribution = keras.distribution.distribution()
        if distribution is None:
            return 1, 1
        mesh = distribution.device_mesh
        lengths = dict(zip(mesh.axis_names, mesh.shape, strict=True))
        return math.prod(mesh.shape), lengths[distribution.batch_dim_name]

    def layout_of(self, variable: Variable) -> Any | None:
        """Return the sharding of a variable under the distribution that is set."""
        distribution = keras.distribution.distribution()
        if distribution is None:
            return None
        layout = distribution.get_variable_layout(variable)
        # A layout of JAX's own is one already.
        return getattr(layout, "backend_layout", layout)

    def distribution_config(self) -> dict[str, Any] | None:
        """Return the distribution that is set as plain data, None for none.

        Raises:
            ConfigError: if it is of a class of the user's own.
        """
        distribution = keras.distribution.distribution()
        if distribution is None:
            return None
        name = type(distribution).__name__
        if getattr(keras.distribution, name, None) is not type(distribution):
            raise ConfigError(
                "Another process cannot make this distribution anew. Expected: "
                f"DataParallel or ModelParallel. Received: a {name}."
            )
        mesh = distribution.device_mesh
        # Private: Keras has no public way to the map.
        layouts = getattr(distribution, "_layout_map", {})
        return {
            "class": name,
            "shape": [*map(int, mesh.shape)],
            "axes": [*mesh.axis_names],
            "batch_axis": distribution.batch_dim_name,
            "layouts": {key: [*layouts[key].axes] for key in layouts},
        }

    def distributed(
        self, config: Mapping[str, Any] | None
    ) -> AbstractContextManager[Any]:
        """Return the scope of a distribution over as many devices of this process."""
        if config is None:
            return nullcontext()
        distribution = keras.distribution
        mesh = distribution.DeviceMesh(config["shape"], config["axes"])
        if config["class"] == distribution.DataParallel.__name__:
            return distribution.DataParallel(device_mesh=mesh).scope()
        layouts = distribution.LayoutMap(mesh)
        for key, axes in config["layouts"].items():
            layouts[key] = tuple(axes)
        batch_axis = config["batch_axis"]
        return distribution.ModelParallel(
            layout_map=layouts, batch_dim_name=batch_axis
        ).scope()


def _tracked(optimizer: Optimizer) -> list[Any]:
    # Private: `optimizer.variables` is a copy, and there is no public way to take a
    # variable out again or to leave one out of a checkpoint.
    return optimizer._variables


# By identity: `list.index` and `list.remove` would compare the values of JAX arrays.
def _place(variables: list[Any], variable: Variable) -> int | None:
    return next((i for i, other in enumerate(variables) if other is variable), None)


def _remove(variables: list[Any], variable: Variable) -> None:
    variables[:] = [other for other in variables if other is not variable]
