"""Memory of the variables of a model and its optimizer.

The slots of an optimizer are found by building a copy of the optimizer on stand-ins.
Stand-ins have the shapes of the model's variables, but no memory. The copy records its
slots instead of creating them.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras

from kerasmem.backends import current
from kerasmem.backends.patching import change_class
from kerasmem.backends.variables import VariableShape
from kerasmem.graph.saving import unbuilt_copy
from kerasmem.graph.values import other_optimizers
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.sharding import ONE_DEVICE, Sharding, shard_shape
from kerasmem.records import EstimatePart
from kerasmem.types import Layer, Model, Optimizer, Variable

_BITS = re.compile(r"(?:bfloat|float|uint|int|complex)(\d+)")


def width(dtype: Any) -> int:
    """Return the bytes per entry of a Keras dtype."""
    bits = _BITS.match(keras.backend.standardize_dtype(dtype))
    return max(8, int(bits[1])) // 8 if bits else 1


class Precision:
    """Compute and variable dtypes of a model.

    `assumed` is the name of a policy that replaces the model's policy in all layers
    that use it.
    """

    def __init__(self, own: Any, assumed: str | None = None) -> None:
        self._own = own
        self._assumed = keras.dtype_policies.get(assumed) if assumed else own

    def compute_width(self, layer: Layer, output_dtype: Any) -> int:
        """Return the bytes per entry in the computations of `layer`."""
        policy = getattr(layer, "dtype_policy", None)
        if policy is not None:
            is_own = policy.name == self._own.name
            return width((self._assumed if is_own else policy).compute_dtype)
        # An operation such as `a + b` has no policy.
        is_own = str(output_dtype) == self._own.compute_dtype
        return width(self._assumed.compute_dtype if is_own else output_dtype)

    def variable_dtype(self, variable: Variable) -> str:
        """Return the storage dtype of `variable`."""
        dtype = keras.backend.standardize_dtype(variable.dtype)
        return (
            self._assumed.variable_dtype if dtype == self._own.variable_dtype else dtype
        )


def persistent_parts(request: Request) -> list[EstimatePart]:
    """Return the exact bytes of all variables on one device, parameters first."""
    model, sharding = request.model, request.sharding
    precision = Precision(model.dtype_policy, request.dtype_policy)
    stand_ins = [_StandIn.of(v, precision.variable_dtype(v)) for v in model.weights]
    for stand_in, variable in zip(stand_ins, model.weights, strict=True):
        stand_in._layout = sharding.layout_of(variable)
    rows = [("parameter", v.path, v.nbytes) for v in stand_ins]
    if request.optimizer is not None:
        slots = _slots(request, [v for v in stand_ins if v.trainable])
        rows += [
            ("optimizer_state", slot.variable or "", slot.nbytes) for slot in slots
        ]
    return [EstimatePart(c, path.rpartition("/")[0] or None, n) for c, path, n in rows]


def persistent_bytes(request: Request) -> int:
    """Return the exact bytes of all variables on one device."""
    return sum(part.nbytes for part in persistent_parts(request))


def gradient_bytes(model: Model) -> int:
    """Return the bytes of the gradients in float32."""
    return sum(4 * math.prod(v.shape) for v in model.trainable_variables)


def accumulator_bytes(model: Model) -> int:
    """Return the peak bytes of the gradients accumulated over micro-batches.

    In a graph, they exist twice in the last part, before and after the addition.
    """
    copies = 1 if current().runs_eagerly else 2
    return copies * gradient_bytes(model)


class Slot(NamedTuple):
    """A variable of an optimizer.

    `variable` is the path of the corresponding model variable.
    """

    name: str
    variable: str | None
    nbytes: int


def _slots(request: Request, variables: Sequence[Any]) -> list[Slot]:
    """Return the slots of the optimizer, or of all optimizers of a custom step.

    Each optimizer in an attribute of the model trains some of the weights. These are
    unknown before the step runs, so the optimizer with the largest slots is counted for
    all weights.
    """

    def slots(optimizer: Optimizer) -> list[Slot]:
        return optimizer_slots(optimizer, variables, request.backend, request.sharding)

    own = slots(request.optimizer)
    model = request.model
    is_own = model.compiled and request.optimizer is model.optimizer
    others = other_optimizers(model).values() if is_own else ()
    if not others:
        return own

    def nbytes(parts: list[Slot]) -> int:
        return sum(slot.nbytes for slot in parts)

    if request.builds_optimizer():
        return own + max(map(slots, others), key=nbytes)
    # The step may use the compiled optimizer.
    return max(own, *map(slots, others), key=nbytes)


def optimizer_slots(
    optimizer: Optimizer,
    variables: Sequence[Any],
    backend: str | None = None,
    sharding: Sharding = ONE_DEVICE,
) -> list[Slot]:
    """Return all variables that `optimizer` will create to train `variables`.

    The optimizer is not changed, and no memory is allocated for the slots.

    Raises:
        ModelError: If the optimizer cannot be restored from its config.
    """
    paths = tuple(variable.path for variable in variables)
    ledger = _Ledger(backend or keras.backend.backend(), paths, sharding)
    shell = _shell(optimizer, ledger)
    shell.build([_StandIn.of(variable) for variable in variables])
    for variable in shell.variables:
        # Keras's step counter has dtype "int", whose width depends on the backend.
        dtype = "int" if variable.name == "iteration" else str(variable.dtype)
        ledger.add(variable.name, None, tuple(variable.shape), dtype)
    return ledger.slots


@dataclass
class _Ledger:
    backend: str
    paths: tuple[str, ...]
    sharding: Sharding
    slots: list[Slot] = field(default_factory=list[Slot])

    def add(
        self, name: str, variable: str | None, shape: Sequence[int], dtype: str | None
    ) -> None:
        if dtype == "int":
            dtype = "int64" if self.backend == "tensorflow" else "int32"
        self.slots.append(Slot(name, variable, math.prod(shape) * width(dtype)))

    def owner(self, name: str) -> tuple[str, str | None]:
        """Return the short name and the variable of a slot named after a variable."""
        # Keras names a slot `dense_kernel_momentum` for the variable `dense/kernel`.
        prefixes = {f"{path.replace('/', '_')}_": path for path in self.paths}
        fitting = [prefix for prefix in prefixes if name.startswith(prefix)]
        if not fitting:
            return name, None
        longest = max(fitting, key=len)
        return name.removeprefix(longest), prefixes[longest]


class _StandIn(VariableShape):
    """An object with the shape of a variable and the memory of one number."""

    _layout: Any = None

    @classmethod
    def of(cls, variable: Variable, dtype: str | None = None) -> "_StandIn":
        stand_in = super().of(variable, dtype)
        stand_in._layout = getattr(variable, "_layout", None)
        return stand_in

    @property
    def held(self) -> tuple[int, ...]:
        """Shape of the shard on one device."""
        return shard_shape(self, self._layout)

    @property
    def nbytes(self) -> int:
        """Bytes of the shard on one device."""
        return math.prod(self.held) * width(self.dtype)


def _shell(optimizer: Optimizer, ledger: _Ledger) -> Any:
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return _shell_of_many(optimizer, ledger)
    shell = unbuilt_copy(optimizer)
    cls = type(shell)
    # No issue known: an optimizer of Keras 3.15 creates its slots only by itself.
    change_class(shell, type(cls.__name__, (_RecordsSlots, cls), {}))
    shell.ledger = ledger
    inner = getattr(shell, "inner_optimizer", None)
    if inner is not None:
        shell.inner_optimizer = _shell(inner, ledger)
    return shell


def _shell_of_many(optimizer: Optimizer, ledger: _Ledger) -> Any:
    # Private API: Keras has no public access to the map. The map returns the user's
    # optimizers, which must stay unbuilt.
    choose = optimizer._optimizer_map
    shells: dict[int, tuple[Any, Any]] = {}

    def shell_of(chosen: Any) -> Any:
        if id(chosen) not in shells:
            # A reference is kept so that the id is not reused.
            shells[id(chosen)] = (chosen, _shell(chosen, ledger))
        return shells[id(chosen)][1]

    def mapped(variable: Variable) -> Any:
        return shell_of(choose(variable))

    default = getattr(choose, "default_optimizer", None)
    if default is not None:
        mapped.default_optimizer = shell_of(default)  # pyright: ignore[reportFunctionMemberAccess]
    return type(optimizer)(mapped, loss_scale_factor=optimizer.loss_scale_factor)


class _RecordsSlots(keras.optimizers.Optimizer):
    """Records the variables of an optimizer instead of creating them."""

    ledger: _Ledger | None = None  # `None` while a constructor may create variables.

    def __init_subclass__(cls, **_: Any) -> None:
        """Skip the hook of a custom class, which may register its subclasses."""

    def add_variable(self, shape: Sequence[int], *args: Any, **options: Any) -> Any:
        """Record a variable of a given shape."""
        if self.ledger is None:
            return super().add_variable(shape, *args, **options)
        dtype, name = options.get("dtype"), options.get("name", "")
        dtype_name = keras.backend.standardize_dtype(dtype)
        # Keras uses this path, by which a distribution may identify the variable.
        slot = _StandIn(shape, dtype_name, name, f"{self.name}/{name}")
        slot._layout = self.ledger.sharding.layout_of(slot)
        self.ledger.add(*self.ledger.owner(name), slot.held, dtype)
        return slot

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, **options: Any
    ) -> Any:
        """Record a variable in the shape of another variable."""
        if self.ledger is None:
            return super().add_variable_from_reference(
                reference_variable, name, **options
            )
        v, path = reference_variable, f"{reference_variable.path}/{name}"
        slot = _StandIn(v.shape, v.dtype, name or "variable", path)
        slot._layout = v._layout
        self.ledger.add(slot.name, v.path, slot.held, v.dtype)
        return slot

    def assign(self, *_: Any) -> None:
        """Ignore the initial value of a slot."""
