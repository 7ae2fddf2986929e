"""The real data set that kerasmem carries, so that a demo needs no download."""

from importlib.resources import files

import numpy as np

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
