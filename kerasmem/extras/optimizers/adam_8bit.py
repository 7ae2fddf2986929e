"""Adam with a quarter of the state."""

import math
import re
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from kerasmem import backends
from kerasmem.checks import PATTERNS, Real, Whole, invalid
from kerasmem.errors import ConfigError
from kerasmem.extras.optimizers.codes import CodedMoments, FullMoments
from kerasmem.extras.optimizers.slots import AddSlot, SlotOptimizer, path_of
from kerasmem.types import Tensor, Variable


@keras.saving.register_keras_serializable(package="kerasmem")
class Adam8bit(SlotOptimizer):
    """Adam with 8-bit moments instead of float32.

    The arithmetic of a step is the same as Adam's, in float32. Between steps, each
    moment is stored as an 8-bit code per entry and a scale per block. Small variables
    keep float32 moments: they need little memory, and biases and normalization are
    sensitive.

    Sources: Dettmers, Lewis, Shleifer and Zettlemoyer, "8-bit Optimizers via Block-wise
    Quantization", 2022; Kingma and Ba, "Adam: A Method for Stochastic Optimization",
    2015. `kerasmem.extras.optimizers.codes` documents the differences from the first
    paper.

    Args:
        learning_rate: Float, schedule or callable, as in `keras.optimizers.Adam`.
            Defaults to 0.001.
        beta_1: Float in [0, 1). Decay rate of the first moment. Defaults to 0.9.
        beta_2: Float in [0, 1). Decay rate of the second moment. Defaults to 0.999.
        epsilon: Float. Added to the root of the second moment. Defaults to 1e-7.
        amsgrad: Must be False, because the largest second moment is not stored.
        block_size: Int >= 16. Number of entries per scale. Larger blocks save up to 8
            bytes per 256 entries, but are less accurate if entries differ in size.
            Defaults to 256.
        min_quantized_size: Int >= 0. Variables with fewer entries keep float32 moments.
            Defaults to 4096.
        full_precision: List of regular expressions. Variables whose path matches keep
            float32 moments. The paper recommends this for word embeddings, such as
            `["embeddings"]`. Defaults to none.
        **options: Other arguments of `keras.optimizers.Adam`: `weight_decay`,
            `clipnorm`, `clipvalue`, `global_clipnorm`, `use_ema`, `ema_momentum`,
            `ema_overwrite_frequency`, `loss_scale_factor`,
            `gradient_accumulation_steps`, `name`.

    Raises:
        ConfigError: If a value is out of range.

    Example:
        >>> Adam8bit(1e-3, clipnorm=1.0).get_config()["block_size"]
        256
    """

    def __init__(  # noqa: PLR0913 - Adam's arguments and three more
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,  # noqa: FBT001, FBT002 - as in Keras
        *,
        block_size: int = 256,
        min_quantized_size: int = 4096,
        full_precision: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        _check_amsgrad(amsgrad)
        share = Real("the decay rate of a moment,", least=0, below=1)
        self.beta_1 = share.check("Adam8bit", "beta_1", beta_1)
        self.beta_2 = share.check("Adam8bit", "beta_2", beta_2)
        self.epsilon = epsilon
        self.block_size = Whole(16).check("Adam8bit", "block_size", block_size)
        self.min_quantized_size = Whole(0).check(
            "Adam8bit", "min_quantized_size", min_quantized_size
        )
        self.full_precision = _checked_patterns(full_precision)

    def update_step(
        self, gradient: Tensor, variable: Variable, learning_rate: Any
    ) -> None:
        """Update one variable with its gradient."""
        moments = self._slots[self._get_variable_index(variable)]
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
        # Keras has no public hook with all gradients of one update. Updates run in
        # reverse, since the gradient of the last variable is ready first.
        super()._backend_update_step(grads[::-1], trainable_variables[::-1], *rest)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "block_size": self.block_size,
            "min_quantized_size": self.min_quantized_size,
            "full_precision": list(self.full_precision),
        }

    def _slots_of(
        self, variable: Variable, add_slot: AddSlot
    ) -> FullMoments | CodedMoments:
        path = path_of(variable)
        is_small = math.prod(variable.shape) < self.min_quantized_size
        if is_small or any(re.search(pattern, path) for pattern in self.full_precision):
            return FullMoments(variable, add_slot)
        return CodedMoments(variable, add_slot, self.block_size)

    def _rate(self, learning_rate: Any) -> Any:
        step = ops.cast(self.iterations + 1, "float32")
        first, second = (ops.power(beta, step) for beta in (self.beta_1, self.beta_2))
        rate = ops.cast(learning_rate, "float32")
        return rate * ops.sqrt(1 - second) / (1 - first)


def _check_amsgrad(amsgrad: Any) -> None:
    if amsgrad:
        raise ConfigError(
            "Adam8bit does not store maximum second moments, which would take half of "
            f"the saved memory. Expected: amsgrad=False. Received: amsgrad={amsgrad!r}."
            " Next: omit amsgrad, or use keras.optimizers.Adam(amsgrad=True)."
        )


def _checked_patterns(patterns: Any) -> tuple[str, ...]:
    if isinstance(patterns, str):
        valid = "a list of regular expressions"
        raise invalid("Adam8bit", "full_precision", patterns, valid)
    return PATTERNS.check("Adam8bit", "full_precision", patterns)
