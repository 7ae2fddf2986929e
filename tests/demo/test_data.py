"""The images that kerasmem carries, and those that a user brings."""

from importlib.resources import files

import numpy as np
import pytest

from kerasmem.demo.recipe import load_demo_data, mirrored_demo_data
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
    (x, y), test = mirrored_demo_data()
    np.testing.assert_array_equal(x[8000:], x[:8000, :, ::-1])
    np.testing.assert_array_equal(y[8000:], y[:8000])
    assert len(test[0]) == 2000
