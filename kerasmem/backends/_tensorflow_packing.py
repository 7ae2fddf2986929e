"""Many short tensors as the rows of one, so that one operation serves them all."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

SHORT = 1024
"""Most entries of a tensor that becomes a row; a row is filled up with zeros."""

Figure = Callable[[tf.Tensor, int | None], tf.Tensor]
"""Called with a tensor and None, or with a matrix and the axis of its rows, 1."""


class Packed:
    """Tensors that are measured together, the short ones as one matrix.

    Args:
        whole: the long tensors, or whose length is not known, and the matrix last.
        order: for each tensor its place, in which the rows of the matrix follow the
            long tensors.
        rows: number of rows of the matrix, 0 if there is none.
    """

    def __init__(
        self, whole: Sequence[tf.Tensor], order: np.ndarray, rows: int
    ) -> None:
        self._whole = whole
        self._order = order
        self._rows = rows

    def each(self, figure: Figure) -> tf.Tensor:
        """Return a figure of each tensor, to which zeros add nothing; a vector."""
        if not self._rows:
            return tf.stack([figure(each, None) for each in self._whole])
        *long, matrix = self._whole
        found = figure(matrix, 1)
        if long:
            first = tf.stack([figure(each, None) for each in long])
            found = tf.concat([first, found], axis=0)
        return tf.gather(found, self._order)


def packed(tensors: Sequence[tf.Tensor]) -> Packed:
    """Return the tensors packed; the only one that is short stays as it is."""
    lengths = [tensor.shape.num_elements() for tensor in tensors]
    short = [i for i, n in enumerate(lengths) if n is not None and n <= SHORT]
    if len(short) == 1:
        short = []
    long = sorted(set(range(len(tensors))) - set(short))
    whole = [tensors[i] for i in long]
    if short:
        whole.append(_matrix([tensors[i] for i in short]))
    return Packed(whole, np.argsort([*long, *short]), len(short))


def _matrix(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    lengths = [tensor.shape.num_elements() or 0 for tensor in flat]
    zero = sum(lengths)
    places = np.full((len(flat), max(lengths)), zero, "int32")
    for row, (length, end) in enumerate(zip(lengths, np.cumsum(lengths), strict=True)):
        places[row, :length] = np.arange(end - length, end)
    return tf.gather(tf.concat([*flat, [0.0]], axis=0), places)
