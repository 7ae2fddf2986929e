"""BatchNormalization that sees the activations of the model as it is now.

Pruned, rounded or trained weights make other activations than those that the moving
statistics were gathered on: with a momentum of 0.99 it takes hundreds of steps of
training until these have followed.

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
from kerasmem.types import Dataset, Model, Tensors

NAME = "reestimate_batch_norm"
SAMPLES, JUDGING_SAMPLES, BATCH_SIZE = 512, 256, 32
_NO_STATISTIC = "is no statistic of a BatchNormalization that is called"

Loss = Callable[[Any, Any, Any], float]
"""The loss of inputs, labels and sample weights, as a mean over the samples."""


class _Moments:
    """Count, mean and sum of squared differences from it, of each channel."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add values of shape `(n, channels)`; return their own mean and variance."""
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
    """Gather the statistics of every BatchNormalization anew, in place.

    Args:
        model: a built model.
        data: samples in any form that `kerasmem.files.data` lists.
        samples: most samples to look at.

    Returns:
        Every weight, changed or left alone.

    Raises:
        DataError: if what goes into one is not finite.
        ModelError: if there is none, or none that is called.
    """
    norms = batch_norms(model)
    norms_called = _gather(model, norms, input_batches(data, samples, BATCH_SIZE))
    if not norms_called:
        raise ModelError(
            f"The model {model.name!r} has no BatchNormalization to estimate anew. "
            f"Received: {len(norms)} of them, none called."
        )
    anew = set(map(id, _statistics(norms_called)))
    return [
        account(weight, NAME, "gathered anew", changed=True)
        if id(weight.variable) in anew
        else account(weight, NAME, _NO_STATISTIC, changed=False)
        for weight in weights(model)
    ]


def reestimate_if_better(
    model: Model, data: Dataset, loss: Loss, batch_size: int = BATCH_SIZE
) -> list[WeightChange]:
    """Gather statistics anew, in place, if the loss on samples does not rise by it.

    They are gathered on at most 512 samples and judged on at most 256 others, drawn
    from all of the data (of a dataset that is only iterated over, the first ones).
    Frozen BatchNormalization, `trainable=False`, stays as it is.

    Args:
        model: a built model.
        data: samples in any form that `kerasmem.files.data` lists.
        loss: of the model as it is when called.
        batch_size: most samples at a time, of arrays; 32 at most are taken.

    Returns:
        The statistics, changed or left alone and why; nothing without
        BatchNormalization that is not frozen. What goes wrong is warned of, and leaves
        them as they were: the model was made at some cost.
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
    except Exception as error:  # noqa: BLE001 - of a model of the user's own any
        _assign(statistics, before)
        why = shortened(str(error))
        if not isinstance(error, DataError):
            warnings.warn(
                "The statistics of BatchNormalization were not gathered anew, and are "
                f"those of the model before: {type(error).__name__}: {why}",
                KerasMemWarning,
                stacklevel=2,
            )
        return _changes_of(model, norms, f"stays: {why}", changed=False)
    # Written so that a loss of NaN is no better than another.
    is_better = bool(new <= old) or not np.isfinite(old)
    _assign(statistics, after if is_better else before)
    words = "gathered anew" if is_better else "stays: the loss would rise"
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
    """Return the compiled loss of a model for samples, computed at once.

    Args:
        model: a compiled model.
        samples: inputs, labels, and sample weights or None, in NumPy arrays.
        outputs: of the model for these inputs.
    """
    x, y, weight = keras.tree.map_structure(_as_tensor, samples)
    return float(model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight))


def _as_tensor(array: Any) -> Any:
    return None if array is None else keras.ops.convert_to_tensor(array)


def batch_norms(model: Model) -> list[Any]:
    """Return every BatchNormalization in a model, nested ones too."""
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
    """Set the statistics of `norms`; return those of them that are called.

    In the pass over the samples each of them normalizes by the batch, as in training;
    all else runs as in inference.
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
        # Keras's masks go with channels that come last, and with no others.
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
