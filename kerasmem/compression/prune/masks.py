"""Masks that keep pruned weights at zero inside the compiled training step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from keras import ops

from kerasmem.backends import current
from kerasmem.backends.gradients import innermost
from kerasmem.compression.prune import Prune
from kerasmem.compression.prune.apply import zero_out
from kerasmem.compression.prune.plan import make_plan
from kerasmem.compression.working import constrain
from kerasmem.graph.values import to_numpy
from kerasmem.types import Model, Optimizer, Variable


class Masks:
    """Masks on variables of a compiled model, applied after every update.

    A mask is the variable's `constraint`, after the user's constraint if there is one.
    The optimizer applies the constraint in the same step as the update, so checkpoints
    are always sparse. Moving averages of the weights are also masked. A mask needs one
    byte per entry. With `splicing`, removed entries keep training in an extra float32
    per entry.
    """

    def __init__(
        self, model: Model, variables: Sequence[Any], *, splicing: bool = False
    ) -> None:
        self._variables = list(variables)
        self._links: list[_Link] = []
        self._undo: list[Callable[[], None]] = []
        for index, variable in enumerate(self._variables):
            link = _Link(model.optimizer, variable)
            shape = tuple(variable.shape)
            link.mask = self._state(link, np.ones(shape, bool), f"mask_{index}")
            if splicing:
                value = to_numpy(variable).astype("float32")
                link.unseen = self._state(link, value, f"unseen_{index}", variable)
            self._links.append(link)
            self._undo.append(constrain(variable, link.masked))

    def read(self) -> list[np.ndarray]:
        """Returns the current masks as bool arrays."""
        return [np.array(link.mask.read()) for link in self._links]

    def values(self) -> list[np.ndarray]:
        """Returns the weights, including removed entries if `splicing` is on."""
        return [
            to_numpy(variable) if link.unseen is None else link.unseen.read()
            for link, variable in zip(self._links, self._variables, strict=True)
        ]

    def write(self, masks: Sequence[np.ndarray]) -> None:
        """Sets masks; weights are zero where a mask is False."""
        for variable, link, mask in zip(
            self._variables, self._links, masks, strict=True
        ):
            link.mask.write(mask)
            if link.unseen is not None:
                # Entries that return continue from their trained value.
                back = np.where(to_numpy(variable) == 0, link.unseen.read(), 0)
                variable.assign(to_numpy(variable) + back.astype(variable.dtype))
            zero_out(variable, mask)
            average = _moving_average(link.optimizer, variable)
            if average is not None:
                zero_out(average, mask)

    def enforce(self) -> None:
        """Applies the masks to weights that were assigned outside of an update."""
        for variable, mask in zip(self._variables, self.read(), strict=True):
            zero_out(variable, mask)

    def release(self) -> None:
        """Removes the masks from the variables. A second call is a no-op."""
        while self._undo:
            self._undo.pop()()

    def _state(
        self, link: "_Link", value: np.ndarray, name: str, like: Any = None
    ) -> Any:
        state = current().step_state(link.optimizer, value, f"kerasmem_{name}", like)
        self._undo.append(state.release)
        return state


@contextmanager
def preserve_zeros(config: Prune, model: Model, trainer: Model) -> Iterator[None]:
    """Keeps the zeros of a pruned model while `trainer` trains."""
    variables = make_plan(model, config).variables
    masks = Masks(trainer, variables)
    try:
        masks.write([to_numpy(v) != 0 for v in variables])
        trainer.train_function = None
        yield
        masks.enforce()
    finally:
        masks.release()
        trainer.train_function = None


class _Link:
    def __init__(self, optimizer: Optimizer, variable: Variable) -> None:
        self.optimizer = optimizer
        self.variable = variable
        self.mask: Any = None
        self.unseen: Any = None

    def masked(self, value: Any) -> Any:
        mask = ops.convert_to_tensor(self.mask.variable)
        if self.unseen is not None:
            # A removed entry was zero before the update, so its value is the update.
            before = ops.where(mask, 0.0, ops.convert_to_tensor(self.unseen.variable))
            self.unseen.variable.assign(before + ops.cast(value, "float32"))
        average = _moving_average(self.optimizer, self.variable)
        if average is not None:
            # Keras averages the updated value before applying constraints.
            average_value = ops.convert_to_tensor(average)
            average.assign(
                ops.where(mask, average_value, ops.zeros_like(average_value))
            )
        return current().masked(value, mask)


def _moving_average(optimizer: Optimizer, variable: Variable) -> Any:
    inner = innermost(optimizer)
    if not getattr(inner, "use_ema", False) or not inner.built:
        return None
    # Private attributes: Keras has no public method to read the averages.
    averages = inner._model_variables_moving_average
    pairs = zip(inner._trainable_variables, averages, strict=True)
    return next((a for v, a in pairs if v is variable), None)
