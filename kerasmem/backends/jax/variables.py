"""JAX variables: extra step state and lazy values."""

import math
from collections.abc import Callable, Iterable, Mapping
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
    """Lazy values that become JAX arrays on first use."""

    def why_not(self) -> str | None:
        """Return a reason if NNX is enabled, because NNX stores values elsewhere."""
        return "NNX" if keras.config.is_nnx_enabled() else None

    def outside_of_traces(self) -> AbstractContextManager[Any]:
        """Return a context that disables tracing."""
        return jax.ensure_compile_time_eval()

    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return zeros, which need no memory in a trace."""
        return jax.numpy.zeros(shape, dtype)


class OptimizerState(StepState):
    """A `StepState` in the optimizer's variables, hidden from checkpoints."""

    def __init__(
        self, optimizer: Optimizer, value: np.ndarray, name: str, like: Any = None
    ) -> None:
        # A loss scaling optimizer restores its variables from before the update, so the
        # inner optimizer has the state.
        self._optimizer = innermost(optimizer)
        variable = self._optimizer.add_variable(
            shape=value.shape,
            dtype=str(value.dtype),
            # Private: Keras uses this layout for optimizer slots.
            layout=getattr(like, "_layout", None),
            name=name,
        )
        variable.assign(value)
        super().__init__(variable, np.array)
        # No issue known: Keras 3.15 saves all variables that an update can change.
        self._undo = [
            patch_method(owner, method, self._without)
            for owner in {id(o): o for o in (optimizer, self._optimizer)}.values()
            for method in ("save_own_variables", "load_own_variables")
        ]

    def release(self) -> None:
        """Remove the variable from the optimizer and restore its save methods."""
        while self._undo:
            self._undo.pop()()
        _remove(_tracked(self._optimizer), self.variable)
        self._optimizer._untrack_variable(self.variable)

    def _without(self, original: Callable[..., Any], store: Any) -> Any:
        variables = _tracked(self._optimizer)
        place = _place(variables, self.variable)
        if place is None:
            # Already released or removed: a loss scaling optimizer also saves its
            # inner optimizer.
            return original(store)
        _remove(variables, self.variable)
        try:
            return original(store)
        finally:
            # Not the earlier list, because `original` may release other states.
            if self._undo:
                variables[place:place] = [self.variable]


class JaxVariables(VariableBackend):
    """JAX variables, whose values are arguments of the step."""

    hands_state_on = True
    lazy_values = JaxLazyValues

    def step_state(
        self, optimizer: Optimizer, value: np.ndarray, name: str, like: Any = None
    ) -> StepState:
        """Return a state in the optimizer's variables."""
        return OptimizerState(optimizer, value, name, like)

    def copies_for_step(self, variables: Iterable[Any]) -> list[Any]:
        """Return copies, because the step donates the memory of its state."""
        return [
            keras.Variable(keras.ops.copy(v.value), dtype=v.dtype, trainable=False)
            for v in variables
        ]

    def sharing_of(self, strategy: Any | None) -> tuple[int, int]:
        """Return the numbers of devices and batch parts of the distribution."""
        distribution = keras.distribution.distribution()
        if distribution is None:
            return 1, 1
        mesh = distribution.device_mesh
        lengths = dict(zip(mesh.axis_names, mesh.shape, strict=True))
        return math.prod(mesh.shape), lengths[distribution.batch_dim_name]

    def layout_of(self, variable: Variable) -> Any | None:
        """Return the sharding of a variable in the current distribution."""
        distribution = keras.distribution.distribution()
        if distribution is None:
            return None
        layout = distribution.get_variable_layout(variable)
        # JAX layouts have no `backend_layout`.
        return getattr(layout, "backend_layout", layout)

    def distribution_config(self) -> dict[str, Any] | None:
        """Return the current distribution as a config, or None.

        Raises `ConfigError` for a user-defined class.
        """
        distribution = keras.distribution.distribution()
        if distribution is None:
            return None
        name = type(distribution).__name__
        if getattr(keras.distribution, name, None) is not type(distribution):
            raise ConfigError(
                "Another process cannot recreate this distribution. Expected: "
                f"DataParallel or ModelParallel. Received: a {name}."
            )
        mesh = distribution.device_mesh
        # Private: Keras has no public access to the map.
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
        """Return the context of a distribution from its config."""
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
    # Private: `optimizer.variables` is a copy. No public API removes a variable or
    # excludes one from a checkpoint.
    return optimizer._variables


# By identity, because `list.index` and `list.remove` compare array values.
def _place(variables: list[Any], variable: Variable) -> int | None:
    return next((i for i, other in enumerate(variables) if other is variable), None)


def _remove(variables: list[Any], variable: Variable) -> None:
    variables[:] = [other for other in variables if other is not variable]
