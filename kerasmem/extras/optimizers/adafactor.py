"""Adafactor without a full-size slot."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from kerasmem import backends
from kerasmem.checks import OneOf
from kerasmem.extras.optimizers.slots import AddSlot, SlotOptimizer
from kerasmem.types import Tensor, Variable


def factored_shape(shape: Sequence[int], axes: str) -> tuple[int, ...]:
    """Return the shape whose last two axes Adafactor factors.

    A shape with fewer than two axes is returned unchanged.

    Args:
        shape: Shape of a variable.
        axes: `"last"` returns `shape`. `"auto"` returns `shape` if its last two axes
            are the two largest. Otherwise it returns the matrix shape with the smallest
            sum of rows and columns.

    Example:
        >>> factored_shape((512, 8, 64), "auto"), factored_shape((3, 3, 64, 32), "auto")
        ((512, 512), (3, 3, 64, 32))
    """
    shape = tuple(shape)
    if axes == "last" or sorted(shape[-2:]) == sorted(shape)[-2:]:
        return shape
    matrices = [
        (math.prod(shape[:split]), math.prod(shape[split:]))
        for split in range(1, len(shape))
    ]
    return min(matrices, key=sum)


@keras.saving.register_keras_serializable(package="kerasmem")
class Adafactor(SlotOptimizer):
    """Adafactor whose state is only one row and one column per matrix.

    The update rule is the rule of `keras.optimizers.Adafactor`. Keras computes the same
    factors but also keeps a slot of the variable's full size. Keras always factors the
    last two axes. If these are not the two largest, as in attention kernels, the
    factors are much larger than one row and one column. This optimizer reshapes such a
    variable to a matrix.

    Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory
    Cost", 2018.

    Args:
        learning_rate: Float, schedule or callable. Maximum step size relative to the
            root mean square of the variable. The relative step size is also at most
            `step ** -0.5`. Defaults to 0.001.
        beta_2_decay: Float. Exponent of the step in the decay of the second moment.
            Defaults to -0.8.
        epsilon_1: Float. Added to the squared gradient. Defaults to 1e-30.
        epsilon_2: Float. Minimum root mean square of a variable for its step size.
            Defaults to 1e-3.
        clip_threshold: Float. Maximum root mean square of an update before the learning
            rate. Defaults to 1.0.
        relative_step: Bool. Accepted for compatibility. Has no effect, as in Keras.
            Defaults to True.
        axes: `"auto"` or `"last"`. `"last"` factors the last two axes of each variable,
            as in Keras. Defaults to `"auto"`.
        **options: Other arguments of `keras.optimizers.Adafactor`: `weight_decay`,
            `clipnorm`, `clipvalue`, `global_clipnorm`, `use_ema`, `ema_momentum`,
            `ema_overwrite_frequency`, `loss_scale_factor`,
            `gradient_accumulation_steps`, `name`.

    Raises:
        ConfigError: If `axes` is not `"auto"` or `"last"`.

    Example:
        >>> Adafactor(1e-2).get_config()["axes"]
        'auto'
    """

    def __init__(  # noqa: PLR0913 - Keras's arguments and one more
        self,
        learning_rate: Any = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,  # noqa: FBT001, FBT002 - as in Keras
        *,
        axes: str = "auto",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        OneOf(("auto", "last")).check("Adafactor", "axes", axes)
        self.beta_2_decay = beta_2_decay
        self.epsilon_1, self.epsilon_2 = epsilon_1, epsilon_2
        self.clip_threshold, self.relative_step = clip_threshold, relative_step
        self.axes = axes

    def update_step(
        self, gradient: Tensor, variable: Variable, learning_rate: Any
    ) -> None:
        """Update one variable with its gradient."""
        shape, slots = self._slots[self._get_variable_index(variable)]
        gradient = ops.cast(backends.current().dense(gradient), "float32")
        gradient = ops.reshape(gradient, shape)
        squares = ops.square(gradient) + self.epsilon_1
        step = ops.cast(self.iterations + 1, "float32")
        decay = 1 - ops.power(step, self.beta_2_decay)
        moments = []
        for slot, axis in slots:
            mean = squares if axis is None else ops.mean(squares, axis=axis)
            moments.append(decay * slot + (1 - decay) * mean)
        second = moments[0]
        if len(moments) > 1:
            rows, columns = moments
            share = rows / ops.mean(rows, axis=-1, keepdims=True)
            second = ops.expand_dims(share, -1) * ops.expand_dims(columns, -2)
        update = ops.reshape(gradient / ops.sqrt(second), tuple(variable.shape))
        for (slot, _), value in zip(slots, moments, strict=True):
            self.assign(slot, value)
        excess = ops.maximum(1.0, _root_mean_square(update) / self.clip_threshold)
        self.assign_sub(
            variable, self._rate(learning_rate, step, variable) * (update / excess)
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "beta_2_decay": self.beta_2_decay,
            "epsilon_1": self.epsilon_1,
            "epsilon_2": self.epsilon_2,
            "clip_threshold": self.clip_threshold,
            "relative_step": self.relative_step,
            "axes": self.axes,
        }

    def _slots_of(self, variable: Variable, add_slot: AddSlot) -> Any:
        shape = factored_shape(variable.shape, self.axes)
        if len(shape) < 2:
            return shape, [(add_slot("velocity", shape), None)]
        *before, rows, columns = shape
        row = add_slot("row", (*before, rows))
        column = add_slot("column", (*before, columns))
        return shape, [(row, -1), (column, -2)]

    def _rate(self, learning_rate: Any, step: Any, variable: Variable) -> Any:
        rate = ops.minimum(ops.cast(learning_rate, "float32"), 1 / ops.sqrt(step))
        size = _root_mean_square(ops.cast(variable, "float32"))
        return ops.maximum(self.epsilon_2, size) * rate


def _root_mean_square(x: Tensor) -> Any:
    return ops.sqrt(ops.mean(ops.square(x)))
