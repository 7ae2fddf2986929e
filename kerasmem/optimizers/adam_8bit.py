"""Adam with a quarter of its state."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import keras
from keras import ops

from kerasmem import backends
from kerasmem.optimizers import checks, codes


class Moments(Protocol):
    """Keeps the moments between steps, in an arrangement of its own.

    The arrangement of a gradient, of the moments and of the change that they make is
    float32 and the same.
    """

    def arrange(self, gradient: Any) -> Any:
        """Return a gradient of the variable's shape as the moments are arranged."""
        ...

    def restore(self, change: Any) -> Any:
        """Return what is arranged like the moments in the variable's shape."""
        ...

    def read(self) -> tuple[Any, Any]:
        """Return the first and the second moment."""
        ...

    def slots(
        self, first: Any, second: Any, root: Any, step: Any
    ) -> Iterable[tuple[Any, Any]]:
        """Return the optimizer's variables and the values that keep new moments.

        Args:
            first: the new first moment.
            second: the new second moment.
            root: its square root.
            step: number of the update, an integer from 0.
        """
        ...


class FullMoments:
    """Both moments as they are, for a variable too small to gain from codes.

    Args:
        variable: of the model.
        add_slot: makes a variable of the optimizer from a name, a shape and a dtype.
    """

    def __init__(self, variable: Any, add_slot: Callable[..., Any]) -> None:
        self._first = add_slot("momentum", variable.shape, "float32")
        self._second = add_slot("velocity", variable.shape, "float32")

    def arrange(self, gradient: Any) -> Any:
        """Return the gradient."""
        return ops.cast(gradient, "float32")

    def restore(self, change: Any) -> Any:
        """Return the change."""
        return change

    def read(self) -> tuple[Any, Any]:
        """Return the first and the second moment."""
        return ops.convert_to_tensor(self._first), ops.convert_to_tensor(self._second)

    def slots(
        self,
        first: Any,
        second: Any,
        root: Any,  # noqa: ARG002
        step: Any,  # noqa: ARG002
    ) -> Iterable[tuple[Any, Any]]:
        """Return the optimizer's variables and the new moments."""
        return (self._first, first), (self._second, second)


class CodedMoments:
    """Both moments in 8 bits an entry and a scale a block.

    Args:
        variable: of the model.
        add_slot: makes a variable of the optimizer from a name, a shape and a dtype.
        block_size: entries of a block; the last one is filled up with zeros.
    """

    def __init__(
        self, variable: Any, add_slot: Callable[..., Any], block_size: int
    ) -> None:
        self._shape = tuple(variable.shape)
        self._size = math.prod(self._shape)
        blocks = -(-self._size // block_size)
        self._blocks = blocks, block_size
        self._first = add_slot("momentum_codes", self._blocks, "uint8")
        self._first_scales = add_slot("momentum_scales", (blocks, 1), "float32")
        self._second = add_slot("velocity_codes", self._blocks, "uint8")
        self._second_scales = add_slot("velocity_scales", (blocks, 1), "float32")

    def arrange(self, gradient: Any) -> Any:
        """Return the gradient in blocks."""
        gradient = ops.cast(gradient, "float32")
        missing = math.prod(self._blocks) - self._size
        if missing:
            gradient = ops.pad(ops.reshape(gradient, (-1,)), [(0, missing)])
        return ops.reshape(gradient, self._blocks)

    def restore(self, change: Any) -> Any:
        """Return a change that is in blocks in the variable's shape."""
        if math.prod(self._blocks) > self._size:
            change = ops.reshape(change, (-1,))[: self._size]
        return ops.reshape(change, self._shape)

    def read(self) -> tuple[Any, Any]:
        """Return the first and the second moment."""
        first = codes.decode_signed(self._first, self._first_scales)
        root = codes.decode_root(self._second, self._second_scales)
        return first, ops.square(root)

    def slots(
        self,
        first: Any,
        second: Any,  # noqa: ARG002
        root: Any,
        step: Any,
    ) -> Iterable[tuple[Any, Any]]:
        """Return the optimizer's variables and the codes and scales of new moments."""
        offsets = codes.rounding_offsets(step, self._blocks[1])
        first_codes, first_scales = codes.encode_signed(first, offsets)
        root_codes, root_scales = codes.encode_root(root, offsets)
        return (
            (self._first, first_codes),
            (self._first_scales, first_scales),
            (self._second, root_codes),
            (self._second_scales, root_scales),
        )


@keras.saving.register_keras_serializable(package="kerasmem")
class Adam8bit(keras.optimizers.Optimizer):
    """Adam that keeps its two moments in 8 bits an entry instead of 32.

    The arithmetic of a step is Adam's, in float32; between steps each moment is a code
    of 8 bits per entry and a scale per block. A variable of few entries keeps both
    moments in float32: that costs little, and biases and normalization are sensitive.

    Args:
        learning_rate: float, schedule or callable, as of `keras.optimizers.Adam`.
        beta_1: what is left of the first moment after a step, in [0, 1).
        beta_2: what is left of the second moment after a step, in [0, 1).
        epsilon: added to the root of the second moment.
        amsgrad: False; the largest second moment so far is not kept.
        block_size: entries that share a scale, at least 16. Larger blocks save up to 8
            bytes per 256 entries and are coarser where their entries differ in size.
        min_quantized_size: a variable of fewer entries keeps both moments in float32.
        full_precision: regular expressions; so does a variable whose path holds one,
            such as `"embeddings"`: the paper advises it for tables of words.
        **options: every other keyword of `keras.optimizers.Adam`: `weight_decay`,
            `clipnorm`, `clipvalue`, `global_clipnorm`, `use_ema`, `ema_momentum`,
            `ema_overwrite_frequency`, `loss_scale_factor`,
            `gradient_accumulation_steps`, `name`.

    Raises:
        ConfigError: if a value is out of its range.

    Source: Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers via Block-wise
    Quantization" (2022); Kingma, Ba, "Adam: A Method for Stochastic Optimization"
    (2015). How the codes differ from the paper's: `kerasmem.optimizers.codes`.

    Example:
        >>> Adam8bit(1e-3, clipnorm=1.0).get_config()["block_size"]
        256
    """

    def __init__(  # noqa: PLR0913 - Adam's keywords, and three of our own
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,  # noqa: FBT001, FBT002 - its place in Adam
        *,
        block_size: int = 256,
        min_quantized_size: int = 4096,
        full_precision: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        checks.check_betas(beta_1=beta_1, beta_2=beta_2)
        checks.check_amsgrad(amsgrad)
        checks.check_sizes(block_size, min_quantized_size)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.block_size, self.min_quantized_size = block_size, min_quantized_size
        self.full_precision = checks.checked_patterns(full_precision)

    def build(self, variables: Sequence[Any]) -> None:
        """Make the slots of the variables to train."""
        if self.built:
            return
        super().build(variables)
        self._moments = [
            # float8 training sets such a variable to its gradient.
            None
            if getattr(variable, "overwrite_with_gradient", False)
            else self._moments_of(variable)
            for variable in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Move one variable by one gradient of it."""
        moments = self._moments[self._get_variable_index(variable)]
        gradient = backends.current().dense(gradient)
        with backends.current().in_turn(gradient, variable) as finish:
            gradient = moments.arrange(gradient)
            first, second = moments.read()
            first = first + (gradient - first) * (1 - self.beta_1)
            second = second + (ops.square(gradient) - second) * (1 - self.beta_2)
            root = ops.sqrt(second)
            slots = [*moments.slots(first, second, root, self.iterations)]
            change = first * self._rate(learning_rate) / (root + self.epsilon)
            change = moments.restore(change)
            for slot, value in slots:
                self.assign(slot, value)
            self.assign_sub(variable, change)
            finish([change, *(value for _, value in slots)])

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], *rest: Any
    ) -> None:
        # Private, for want of a public place that has the gradients of one update:
        # updates take turns, and the gradient of the last variable is there first.
        super()._backend_update_step(grads[::-1], trainable_variables[::-1], *rest)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make the same optimizer."""
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "block_size": self.block_size,
            "min_quantized_size": self.min_quantized_size,
            "full_precision": list(self.full_precision),
        }

    def _moments_of(self, variable: Any) -> Moments:
        # A bare tf.Variable has no path.
        path = getattr(variable, "path", variable.name)

        def add_slot(name: str, shape: Sequence[int], dtype: str) -> Any:
            # Named as Keras names the slots of a variable.
            name = f"{path.replace('/', '_')}_{name}"
            return self.add_variable(shape=shape, dtype=dtype, name=name)

        is_small = math.prod(variable.shape) < self.min_quantized_size
        if is_small or any(re.search(kept, path) for kept in self.full_precision):
            return FullMoments(variable, add_slot)
        return CodedMoments(variable, add_slot, self.block_size)

    def _rate(self, learning_rate: Any) -> Any:
        """Return the learning rate, corrected for moments that began at zero."""
        step = ops.cast(self.iterations + 1, "float32")
        first, second = (ops.power(beta, step) for beta in (self.beta_1, self.beta_2))
        rate = ops.cast(learning_rate, "float32")
        return rate * ops.sqrt(1 - second) / (1 - first)
