"""The images that the demo works on: its own, or the user's."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from kerasmem.errors import DataError
from kerasmem.files.data import hold_out, load_data

Split = tuple[np.ndarray, np.ndarray]


def load_demo_data() -> tuple[Split, Split]:
    """Return `(x_train, y_train), (x_test, y_test)` of a subset of Fashion-MNIST.

    Images are uint8 of shape (8000, 28, 28) and (2000, 28, 28), from 0 to 255; labels
    are uint8 from 0 to 9, every class equally often.

    Example:
        >>> (x_train, y_train), (x_test, y_test) = load_demo_data()
        >>> x_train.shape, x_test.shape
        ((8000, 28, 28), (2000, 28, 28))
    """
    with (
        files("kerasmem.demo").joinpath("fashion_mnist_subset.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        return (
            (arrays["x_train"], arrays["y_train"]),
            (arrays["x_test"], arrays["y_test"]),
        )


_SMALLEST_SIDE = 8  # the network halves height and width three times


@dataclass(frozen=True)
class Images:
    """Labeled images.

    Args:
        train: `(x, y)`, images of shape (n, height, width) or (n, height, width,
            channels) with values 0 to 255, and class numbers of shape (n,).
        test: the same, to judge by.
        name: what the images are called in a report.
    """

    train: Any
    test: Any
    name: str

    @property
    def classes(self) -> int:
        """Number of classes."""
        return 1 + int(max(self.train[1].max(), self.test[1].max()))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return tuple(self.train[0].shape[1:])


def load_images(path: str | Path | None) -> Images:
    """Return the demo's own images, or those of an `.npz` file.

    The demo's own training images come twice, as they are and mirrored: a mirrored
    shoe is a shoe. Of what the user's images show nothing is known, so they come once.

    Raises:
        DataError: if the file does not hold labeled images.
    """
    if path is None:
        (x, y), test = load_demo_data()
        train = (np.concatenate([x, x[:, :, ::-1]]), np.concatenate([y, y]))
        return Images(train, test, "Fashion-MNIST, 8,000 + 2,000 images")
    loaded = load_data(path)
    train, test = loaded.train, loaded.test
    _check(train, path)
    if test is None:
        train, test = hold_out(train, 0.2)
    _check(test, path)
    return Images(train, test, str(path))


def _check(split: Any, path: str | Path) -> None:
    """Raise unless a split is `(images, class numbers)`."""
    x, y, *_ = (*split, None) if isinstance(split, tuple) else (split, None)
    shape = np.shape(x)
    if len(shape) not in {3, 4} or min(shape[1:3]) < _SMALLEST_SIDE:
        raise DataError(
            "The demo takes images x of shape (n, height, width) or (n, height, width, "
            f"channels), at least {_SMALLEST_SIDE} pixels high and wide. Received: "
            f"{path} with x of shape {shape}."
        )
    labels = np.asarray(y)
    numbers = labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)
    if not numbers or labels.min() < 0:
        raise DataError(
            "The demo takes class numbers y of shape (n,), integers from 0. Received: "
            f"{path} with y of shape {labels.shape} and dtype {labels.dtype}."
        )
