"""Keeping pruned weights at zero while the model trains, inside the compiled step.

A mask takes one bit per entry where a step unpacks them at no cost.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
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
    """Masks on some variables of a compiled model, applied after every update.

    A mask is the variable's `constraint`, behind the user's own if there is one, so
    the optimizer applies it in the same step as the update: weights are sparse at
    every moment, in every checkpoint. Moving averages that the optimizer keeps of the
    weights are masked in the same step. A mask takes one bit per entry where XLA
    compiles the step, one byte elsewhere.

    Args:
        model: a built and compiled model.
        variables: the variables to mask; nothing is masked until `write`.
        splicing: whether removed entries go on learning unseen, in a float32 per entry.
    """

    def __init__(
        self, model: Model, variables: Sequence[Any], *, splicing: bool = False
    ) -> None:
        self._variables = list(variables)
        # XLA unpacks bits in the same pass in which it masks; others take more of them.
        self._packed = current().compiles_with_xla(model)
        self._links: list[_Link] = []
        self._undo: list[Callable[[], None]] = []
        for index, variable in enumerate(self._variables):
            link = _Link(model.optimizer, variable)
            shape = tuple(variable.shape)
            link.mask = self._state(
                link, self._encoded(np.ones(shape, bool)), f"mask_{index}"
            )
            if splicing:
                value = to_numpy(variable).astype("float32")
                link.unseen = self._state(link, value, f"unseen_{index}", variable)
            self._links.append(link)
            self._undo.append(constrain(variable, link.masked))

    @property
    def nbytes(self) -> int:
        """Return the bytes that the masks take."""
        return sum(link.mask.read().nbytes for link in self._links)

    def read(self) -> list[np.ndarray]:
        """Return the masks as they are, bool arrays."""
        return [
            np.array(decode(link.mask.read(), tuple(variable.shape)))
            for link, variable in zip(self._links, self._variables, strict=True)
        ]

    def values(self) -> list[np.ndarray]:
        """Return the weights, with `splicing` also those that are removed."""
        return [
            to_numpy(variable) if link.unseen is None else link.unseen.read()
            for link, variable in zip(self._links, self._variables, strict=True)
        ]

    def write(self, masks: Sequence[np.ndarray]) -> None:
        """Set weights to zero where a mask is False, from now on."""
        for variable, link, mask in zip(
            self._variables, self._links, masks, strict=True
        ):
            link.mask.write(self._encoded(mask))
            if link.unseen is not None:
                # What comes back has the value that it would have.
                back = np.where(to_numpy(variable) == 0, link.unseen.read(), 0)
                variable.assign(to_numpy(variable) + back.astype(variable.dtype))
            zero_out(variable, mask)
            average = _moving_average(link.optimizer, variable)
            if average is not None:
                zero_out(average, mask)

    def enforce(self) -> None:
        """Apply the masks once more, to weights that were set in another way."""
        for variable, mask in zip(self._variables, self.read(), strict=True):
            zero_out(variable, mask)

    def release(self) -> None:
        """Let the variables change freely again; a second call is a no-op."""
        while self._undo:
            self._undo.pop()()

    def _encoded(self, mask: np.ndarray) -> np.ndarray:
        return encode(mask, packed=self._packed)

    def _state(
        self, link: "_Link", value: np.ndarray, name: str, like: Any = None
    ) -> Any:
        state = current().step_state(link.optimizer, value, f"kerasmem_{name}", like)
        self._undo.append(state.release)
        return state


@contextmanager
def preserve_zeros(config: Prune, model: Model, trainer: Model) -> Iterator[None]:
    """Keep the zeros of a pruned model at zero while `trainer` trains it.

    Args:
        config: how it was pruned.
        model: the pruned model.
        trainer: the compiled model that `fit` is called on.
    """
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
    """One mask of one variable, as a step sees it."""

    def __init__(self, optimizer: Optimizer, variable: Variable) -> None:
        self.optimizer = optimizer
        self.variable = variable
        self.mask: Any = None
        self.unseen: Any = None

    def masked(self, value: Any) -> Any:
        """Return an updated value of the variable, with zeros where it is removed."""
        mask = decode_in_step(self.mask.variable, value.shape)
        if self.unseen is not None:
            # A removed entry was zero before the update, so its value is the update.
            before = ops.where(mask, 0.0, ops.convert_to_tensor(self.unseen.variable))
            self.unseen.variable.assign(before + ops.cast(value, "float32"))
        average = _moving_average(self.optimizer, self.variable)
        if average is not None:
            # Keras averages what the update gave, before any constraint.
            average_value = ops.convert_to_tensor(average)
            average.assign(
                ops.where(mask, average_value, ops.zeros_like(average_value))
            )
        return current().masked(value, mask)


def _moving_average(optimizer: Optimizer, variable: Variable) -> Any:
    inner = innermost(optimizer)
    if not getattr(inner, "use_ema", False) or not inner.built:
        return None
    # Private: Keras gives no public way to the averages, only writes them back.
    averages = inner._model_variables_moving_average
    pairs = zip(inner._trainable_variables, averages, strict=True)
    return next((a for v, a in pairs if v is variable), None)


_BITS = np.array([[1], [2], [4], [8], [16], [32], [64], [128]], "uint8")


def encode(mask: np.ndarray, *, packed: bool) -> np.ndarray:
    """Return a bool mask as it is kept: eight entries in a byte, or as it is.

    The entries of one byte lie an eighth of the array apart: so those of one bit are
    neighbors, and a processor unpacks many at once.

    Example:
        >>> encode(np.array([True, False, True]), packed=True)
        array([5], dtype=uint8)
    """
    if not packed:
        return mask
    flat = np.pad(mask.ravel(), (0, -mask.size % len(_BITS)))
    planes = flat.view("uint8").reshape(len(_BITS), -1)
    code = planes[0].copy()
    # Several times as quick as np.packbits, which takes the planes entry by entry.
    for place, plane in enumerate(planes[1:], start=1):
        code |= plane << place
    return code


def decode(code: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return the mask of `shape` that `encode` made `code` of."""
    if code.dtype == bool:
        return code
    flat = (code & _BITS).ravel() != 0
    return flat[: math.prod(shape)].reshape(shape)


def decode_in_step(code: Any, shape: Sequence[int]) -> Any:
    """Return the mask that a state holds as a bool tensor."""
    code = ops.convert_to_tensor(code)
    if keras.backend.standardize_dtype(code.dtype) == "bool":
        return code
    bits = ops.convert_to_tensor(_BITS)
    flat = ops.reshape(ops.not_equal(ops.bitwise_and(code, bits), 0), (-1,))
    size = math.prod(shape)
    return ops.reshape(flat if size % len(_BITS) == 0 else flat[:size], tuple(shape))
