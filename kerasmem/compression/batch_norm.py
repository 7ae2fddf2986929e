"""Re-estimates BatchNormalization statistics for changed weights.

Pruning, rounding and training change the activations, so the moving statistics no
longer fit. With a momentum of 0.99, training needs hundreds of steps to correct them.

Source: Sun et al., "Hybrid 8-bit floating point (HFP8) training and inference for deep
neural networks", 2019.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.backends.patching import LayerCall
from kerasmem.compression.account import account
from kerasmem.errors import DataError, KerasMemWarning, ModelError, shortened
from kerasmem.files.data import drawn_batches, input_batches
from kerasmem.graph.layers import sublayers, weights
from kerasmem.graph.observe import observe
from kerasmem.graph.values import not_finite, to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model, Tensor, Tensors

NAME = "reestimate_batch_norm"
SAMPLES, JUDGING_SAMPLES, BATCH_SIZE = 512, 256, 32
_NO_STATISTIC = "is not a statistic of a BatchNormalization that is called"

Loss = Callable[[Any, Any, Any], float]
"""Mean loss over samples, from inputs, labels and sample weights."""


class _Moments:
    """Running count, mean and sum of squared deviations per channel."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Adds values of shape `(n, channels)`; returns their mean and variance."""
        count, mean, variance = len(values), values.mean(0), values.var(0)
        total = self.count + count
        apart = mean - self.mean
        self.squares = (
            self.squares + variance * count + apart**2 * self.count * count / total
        )
        self.mean = self.mean + apart * count / total
        self.count = total
        return mean, variance


def reestimate(model: Model, data: Dataset, samples: int) -> list[WeightChange]:
    """Re-estimates the statistics of every BatchNormalization, in place.

    Uses at most `samples` samples. Returns one `WeightChange` per weight.

    Raises:
        DataError: If the input of a layer is not finite.
        ModelError: If the model calls no BatchNormalization.
    """
    norms = batch_norms(model)
    norms_called = _gather(model, norms, input_batches(data, samples, BATCH_SIZE))
    if not norms_called:
        raise ModelError(
            f"The model {model.name!r} has no BatchNormalization to re-estimate. "
            f"Received: {len(norms)} BatchNormalization layers, none called."
        )
    anew = set(map(id, _statistics(norms_called)))
    return [
        account(weight, NAME, "re-estimated", changed=True)
        if id(weight.variable) in anew
        else account(weight, NAME, _NO_STATISTIC, changed=False)
        for weight in weights(model)
    ]


def reestimate_if_better(
    model: Model, data: Dataset, loss: Loss, batch_size: int = BATCH_SIZE
) -> list[WeightChange]:
    """Re-estimates the statistics in place if `loss` does not increase.

    Estimation uses up to 512 samples and evaluation up to 256 others. Samples are drawn
    from all data, but from an iterator the first ones are used. Frozen
    BatchNormalization layers (`trainable=False`) are not changed.

    Returns one `WeightChange` per statistic. An error in the model only causes a
    warning and restores the statistics, so that a costly compression is not lost.
    """
    norms = [norm for norm in batch_norms(model) if norm.trainable]
    if not norms:
        return []
    statistics = _statistics(norms)
    before = [to_numpy(variable) for variable in statistics]
    size = min(batch_size, BATCH_SIZE)
    batches = drawn_batches(data, SAMPLES, size, part=0)
    judging = drawn_batches(data, JUDGING_SAMPLES, size, part=1)
    try:
        norms_called = _gather(model, norms, (x for x, _, _ in batches))
        after = [to_numpy(variable) for variable in statistics]
        old, new = _losses(statistics, (before, after), judging, loss)
    except Exception as error:  # noqa: BLE001 - a custom model can raise any error
        _assign(statistics, before)
        why = shortened(str(error))
        if not isinstance(error, DataError):
            warnings.warn(
                "The BatchNormalization statistics were not re-estimated and are still "
                f"from the model before: {type(error).__name__}: {why}",
                KerasMemWarning,
                stacklevel=2,
            )
        return _changes_of(model, norms, f"unchanged: {why}", changed=False)
    # A NaN loss must not count as better.
    is_better = bool(new <= old) or not np.isfinite(old)
    _assign(statistics, after if is_better else before)
    words = "re-estimated" if is_better else "unchanged: the loss would increase"
    return _changes_of(
        model, norms_called, f"{words}, {old:.4g} to {new:.4g}", changed=is_better
    )


def _losses(
    statistics: list[Any],
    choices: Sequence[list[np.ndarray]],
    batches: Iterable[tuple[Any, Any, Any]],
    loss: Loss,
) -> np.ndarray:
    totals, count = np.zeros(len(choices)), 0
    for x, y, weight in batches:
        samples = len(keras.tree.flatten(x)[0])
        count += samples
        for place, values in enumerate(choices):
            _assign(statistics, values)
            totals[place] += samples * loss(x, y, weight)
    return totals / max(count, 1)


def own_loss(model: Model, samples: tuple[Any, Any, Any], outputs: Tensors) -> float:
    """Returns the compiled loss of a model for one batch.

    `samples` is a tuple of inputs, labels and sample weights as NumPy arrays or `None`.
    """
    x, y, weight = keras.tree.map_structure(_as_tensor, samples)
    return float(model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight))


def _as_tensor(array: Tensor) -> Any:
    return None if array is None else keras.ops.convert_to_tensor(array)


def batch_norms(model: Model) -> list[Any]:
    """Returns all BatchNormalization layers of a model, including nested ones."""
    return [
        layer
        for layer in sublayers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
    ]


def _statistics(norms: Iterable[Any]) -> list[Any]:
    return [v for norm in norms for v in (norm.moving_mean, norm.moving_variance)]


def _assign(variables: list[Any], values: list[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _changes_of(
    model: Model, norms: list[Any], detail: str, *, changed: bool
) -> list[WeightChange]:
    statistic_ids = set(map(id, _statistics(norms)))
    return [
        account(weight, NAME, detail, changed=changed)
        for weight in weights(model)
        if id(weight.variable) in statistic_ids
    ]


def _gather(model: Model, norms: list[Any], batches: Iterable[Any]) -> list[Any]:
    """Sets the statistics of `norms` and returns the layers that were called.

    In this pass, these layers normalize by the batch, as in training. All other layers
    run in inference mode.
    """
    moments_by_norm = {id(norm): _Moments() for norm in norms}
    observe(
        model,
        batches,
        norms,
        inputs=lambda call: _by_batch(call, moments_by_norm[id(call.layer)]),
    )
    norms_called = [norm for norm in norms if moments_by_norm[id(norm)].count]
    for norm in norms_called:
        moments = moments_by_norm[id(norm)]
        norm.moving_mean.assign(moments.mean)
        norm.moving_variance.assign(moments.squares / moments.count)
    return norms_called


def _by_batch(call: LayerCall, moments: _Moments) -> Any:
    norm, inputs, mask = call.layer, call.x, call.kwargs.get("mask")
    values = np.moveaxis(to_numpy(inputs).astype(np.float64), norm.axis, -1)
    rows = values.reshape(-1, values.shape[-1])
    if mask is not None:
        # A Keras mask applies only to channels-last inputs.
        rows = values[to_numpy(mask).astype(bool)]
    if not np.isfinite(rows).all():
        raise not_finite(norm)
    if not len(rows):
        return None
    mean, variance = moments.add(rows)
    outputs = keras.ops.batch_normalization(
        keras.ops.cast(inputs, "float32"),
        keras.ops.convert_to_tensor(mean, "float32"),
        keras.ops.convert_to_tensor(variance, "float32"),
        axis=norm.axis,
        offset=norm.beta if norm.center else None,
        scale=norm.gamma if norm.scale else None,
        epsilon=norm.epsilon,
    )
    return keras.ops.cast(outputs, norm.compute_dtype)
