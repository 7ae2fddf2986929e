"""What several losses do with the features and the labels of a batch."""

from typing import Any

from keras import ops

SMALLEST = 1e-12


def flat(features: Any) -> Any:
    """Return features as one vector per sample, (batch, entries)."""
    return ops.reshape(features, (ops.shape(features)[0], -1))


def unit(vectors: Any, axis: int = -1) -> Any:
    """Return vectors of length 1; one of length 0 stays as it is."""
    squares = ops.sum(ops.square(vectors), axis=axis, keepdims=True)
    return vectors / ops.sqrt(ops.maximum(squares, SMALLEST))


def products(vectors: Any) -> Any:
    """Return the dot product of every vector with every other, (batch, batch)."""
    return ops.matmul(vectors, ops.transpose(vectors))


def off_diagonal(vectors: Any) -> Any:
    """Return a (batch, batch) matrix of ones with zeros on its diagonal."""
    count = ops.shape(vectors)[0]
    numbers = ops.arange(count)
    same = ops.equal(ops.expand_dims(numbers, 0), ops.expand_dims(numbers, 1))
    return 1.0 - ops.cast(same, "float32")


def batch_size(vectors: Any) -> Any:
    """Return the number of samples, a float32 scalar."""
    return ops.cast(ops.shape(vectors)[0], "float32")


def huber(difference: Any) -> Any:
    """Return half the square of a difference up to 1, beyond it a line."""
    size = ops.abs(difference)
    return ops.where(size <= 1, 0.5 * ops.square(difference), size - 0.5)


def one_hot(labels: Any, logits: Any) -> Any:
    """Return labels as float32 of the shape of logits, (..., classes).

    Args:
        labels: classes as numbers, with or without a last axis of 1, or probabilities,
            of which the largest counts.
        logits: of all classes.
    """
    labels = ops.convert_to_tensor(labels)
    classes = logits.shape[-1]
    if labels.ndim == logits.ndim and labels.shape[-1] == classes:
        return ops.one_hot(ops.argmax(labels, axis=-1), classes, dtype="float32")
    if labels.ndim == logits.ndim:
        labels = ops.squeeze(labels, axis=-1)
    return ops.one_hot(ops.cast(labels, "int32"), classes, dtype="float32")
