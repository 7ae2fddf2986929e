"""What the losses of a model are means of, and how one part of a batch counts."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from kerasmem.backends import splitting
from kerasmem.types import Model, Tensor, Tensors

Loss = Callable[..., Any]
_MEANS_OF_ALL = {"sum_over_batch_size", "mean"}


def are_means(model: Model) -> bool:
    """Return whether every loss is a mean over the samples, if nothing is masked."""
    return all(
        getattr(loss, "reduction", "mean") in _MEANS_OF_ALL for loss in _losses(model)
    )


def is_counted(model: Model) -> bool:
    """Return whether the model has losses of Keras to count."""
    return bool(_losses(model))


class LossFactors:
    """Multiplies each loss of a model with a factor that the running step gives.

    Of one thread: under a `tf.distribute` strategy every replica has its own.

    Args:
        model: a compiled model.
        weighs_batches_alike: Whether the losses of single outputs are reported as means
            over batches, of whatever size. Keras does so in TensorFlow's graphs, where
            the number of samples is unknown.
    """

    def __init__(self, model: Model, *, weighs_batches_alike: bool) -> None:
        self._model = model
        self._weighs_batches_alike = weighs_batches_alike
        self._now = threading.local()
        self._entries: list[Any] | None = None
        self._undo = ExitStack()

    def install(self) -> None:
        """Put it into the losses that the model has now; a second call is a no-op.

        The model has to be built.
        """
        entries = _entries(self._model)
        if entries is self._entries:
            return
        self.remove()
        self._entries = entries
        self._undo.enter_context(_replaced(self._model, self._scaled))
        if self._weighs_batches_alike and entries:
            metrics = self._model._compile_loss.metrics
            self._undo.callback(metrics.__setitem__, slice(None), list(metrics))
            metrics[:] = [WeighedMetric(metric, self._now) for metric in metrics]

    def remove(self) -> None:
        """Leave the losses as they were; a second call is a no-op."""
        self._undo.close()
        self._entries = None

    def _scaled(self, loss: Any, place: int) -> "ScaledLoss":
        return ScaledLoss(loss, place, self._now)

    @contextmanager
    def using(self, share: Any, factors: Any) -> Iterator[None]:
        """Use `factors`, a vector with one per loss; an empty one for none.

        Args:
            share: The fraction of the batch's samples in this part.
            factors: The factors of the losses.
        """
        self._now.factors = factors if factors.shape[0] else None
        self._now.share = share
        try:
            yield
        finally:
            self._now.factors = self._now.share = None


class ScaledLoss:
    """A loss times the factor of the running step, if there is one.

    Args:
        loss: the loss.
        place: its place among the losses.
        now: what the step of this thread gives.
    """

    def __init__(self, loss: Any, place: int, now: threading.local) -> None:
        self.loss = loss
        self._place = place
        self._now = now

    def __call__(self, *arguments: Any) -> Any:
        """Return the value."""
        value = self.loss(*arguments)
        factors = getattr(self._now, "factors", None)
        if factors is None:
            return value
        return value * keras.ops.cast(factors[self._place], value.dtype)


class WeighedMetric:
    """Weighs the loss of a part by its share, and that of a whole batch as one.

    Args:
        metric: The metric of one loss.
        now: The share of the running step in this thread.
    """

    def __init__(self, metric: Any, now: threading.local) -> None:
        self._metric = metric
        self._now = now

    def update_state(self, value: Any, sample_weight: Tensor = None) -> Any:  # noqa: ARG002
        """Update the metric with one loss."""
        share = getattr(self._now, "share", None)
        return self._metric.update_state(value, sample_weight=share)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the metric."""
        return getattr(self._metric, name)


def count_valid(model: Model, batch: Tensors, note_mask: Callable[[], None]) -> Any:
    """Return what each loss divides its sum by: a vector, NaN where it does not.

    The model is called as in inference, and changes nothing if the caller sees to it
    that assignments go nowhere, as in a `keras.StatelessScope`.

    Args:
        model: a compiled model that has been built.
        batch: what its `train_step` is given.
        note_mask: called if anything is masked.
    """
    batch = splitting.copy_weights(batch)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    counting = functools.partial(count, note_mask=note_mask)
    counts = apply(model, counting, y, model(x, training=False), sample_weight)
    return keras.ops.stack(counts)


def apply(
    model: Model, function: Loss, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor
) -> list[Any]:
    """Return the results of a function of each loss and its arguments.

    Args:
        model: A compiled model that has been built.
        function: Called with the loss, its targets, its output and its weights.
        y_true: The targets of the model.
        y_pred: The outputs of the model.
        sample_weight: The sample weights, or `None`.
    """
    results: list[Any] = []

    def collecting(loss: Any, _place: int) -> Loss:
        def call(*arguments: Any) -> Any:
            results.append(function(loss, *arguments))
            return keras.ops.zeros(())

        return call

    with _replaced(model, collecting):
        model._compile_loss(y_true, y_pred, sample_weight)
    return results


def count(
    loss: Any,
    y_true: Tensor,
    y_pred: Tensor,
    weight: Any,
    note_mask: Callable[[], None] = lambda: None,
) -> Any:
    """Return what a loss divides by: its own sum where every value is one."""
    if loss.reduction in {"sum", "none", None}:
        return keras.ops.convert_to_tensor(float("nan"), "float32")
    Ones(note_mask)(y_pred)
    is_weighted = loss.reduction == "mean_with_sample_weight"
    total = Count(loss, note_mask)(y_true, y_pred, weight if is_weighted else None)
    return keras.ops.cast(total, "float32")


class Count(keras.losses.Loss):
    """The sum of a loss whose every value is one.

    Args:
        loss: the loss.
        note_mask: called if its values are masked.
    """

    def __init__(self, loss: Any, note_mask: Callable[[], None]) -> None:
        super().__init__(reduction="sum", dtype=loss.dtype)
        self._loss = loss
        self._note_mask = note_mask

    def call(self, y_true: Tensor, y_pred: Tensor) -> Any:
        """Return a one for every value of the loss, for every sample if it is one."""
        values = self._loss.call(y_true, y_pred)
        if len(values.shape) == 0:
            outputs = keras.tree.flatten(y_pred)[0]
            return keras.ops.cast(keras.ops.shape(outputs)[0], "float32")
        return Ones(self._note_mask)(values)


class Ones(keras.layers.Layer):
    """Gives ones of its input's shape, masked as that is.

    A layer, because only layers are told of a mask, and hand it on.

    Args:
        note_mask: called if there is one.
    """

    def __init__(self, note_mask: Callable[[], None]) -> None:
        super().__init__(dtype="float32", autocast=False)
        self.supports_masking = True
        self._note_mask = note_mask

    def call(self, inputs: Tensors, mask: Tensor = None) -> Any:
        """Return the ones."""
        if mask is not None:
            self._note_mask()
        return keras.ops.ones_like(inputs)


def names(model: Model) -> list[str]:
    """Return the name of each loss."""
    return [loss.name for loss in _losses(model)]


def dtype_of(model: Model, place: int) -> str:
    """Return the dtype that a loss computes in."""
    return dict(enumerate(loss.dtype for loss in _losses(model))).get(place, "float32")


def _losses(model: Model) -> list[Any]:
    losses = [entry.loss for entry in _entries(model)]
    return [loss.loss if isinstance(loss, ScaledLoss) else loss for loss in losses]


@contextmanager
def _replaced(model: Model, replace: Callable[[Any, int], Loss]) -> Iterator[None]:
    entries, losses = _entries(model), _losses(model)
    before = list(entries)
    entries[:] = [
        entry._replace(loss=replace(loss, place))
        for place, (entry, loss) in enumerate(zip(before, losses, strict=True))
    ]
    try:
        yield
    finally:
        entries[:] = before


def _entries(model: Model) -> list[Any]:
    # Private: where a compiled model keeps its losses, one per output that has one;
    # `model.loss` is only what the user wrote. A model with a `compute_loss` of its
    # own may have none.
    compile_loss = model._compile_loss
    return [] if compile_loss is None else compile_loss._flat_losses or []
