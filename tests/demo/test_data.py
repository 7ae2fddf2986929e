"""The images that kerasmem carries, and those that a user brings."""

from importlib.resources import files

import numpy as np
import pytest

from kerasmem.demo.recipe import load_demo_data, load_images
from kerasmem.errors import DataError
from kerasmem.units import MIB

pytestmark = pytest.mark.one_backend


def test_the_images_are_ten_thousand_and_balanced():
    (x_train, y_train), (x_test, y_test) = load_demo_data()
    assert (x_train.shape, x_test.shape) == ((8000, 28, 28), (2000, 28, 28))
    assert x_train.dtype == x_test.dtype == np.uint8
    np.testing.assert_array_equal(np.bincount(y_train), [800] * 10)
    np.testing.assert_array_equal(np.bincount(y_test), [200] * 10)


def test_no_test_image_was_trained_on():
    (x_train, _), (x_test, _) = load_demo_data()
    seen = {image.tobytes() for image in x_train}
    assert not any(image.tobytes() in seen for image in x_test)


def test_the_file_takes_at_most_5_mib():
    archive = files("kerasmem.demo").joinpath("fashion_mnist_subset.npz")
    assert len(archive.read_bytes()) <= 5 * MIB


def test_the_demos_own_training_images_come_mirrored_too():
    images = load_images(None)
    x, y = images.train
    np.testing.assert_array_equal(x[8000:], x[:8000, :, ::-1])
    np.testing.assert_array_equal(y[8000:], y[:8000])
    assert (images.classes, images.shape, len(images.test[0])) == (10, (28, 28), 2000)


def test_a_users_images_are_split_if_they_are_not(tmp_path):
    x = np.arange(10 * 8 * 9 * 3).reshape(10, 8, 9, 3) % 256
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(10) % 4)
    images = load_images(tmp_path / "mine.npz")
    np.testing.assert_array_equal(images.train[0], x[:8])
    np.testing.assert_array_equal(images.test[0], x[8:])
    assert (images.classes, images.shape) == (4, (8, 9, 3))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((4, 784)), "y": np.zeros(4, int)}, r"x of shape \(4, 784\)"),
        ({"x": np.zeros((4, 7, 9)), "y": np.zeros(4, int)}, "at least 8 pixels"),
        ({"x": np.zeros((4, 8, 8)), "y": np.zeros((4, 2), int)}, r"shape \(4, 2\)"),
        ({"x": np.zeros((4, 8, 8)), "y": np.zeros(4)}, "dtype float64"),
        ({"x": np.zeros((4, 8, 8))}, "Expected: class numbers y"),
    ],
)
def test_images_that_the_demo_cannot_use_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_images(tmp_path / "mine.npz")
