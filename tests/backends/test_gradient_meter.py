"""What is measured of gradients, against NumPy, on the backend that runs."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasmem import backends

SIZES = [(), (1,), (7,), (1025, 3), (4096,), (4097, 2, 9), (70_001,)]


@pytest.fixture(params=[False, True], ids=["run as it is", "compiled by XLA"])
def compiled(request):
    return request.param


def random_arrays(sizes=SIZES, seed=5):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.normal(size=size), "float32") for size in sizes]


def measured(compiled, arrays):
    adapter = backends.current()

    def both(gradients):
        joined = adapter.joined(gradients)
        return adapter.squared_norms(joined), adapter.gradient_statistics(joined)

    if keras.backend.backend() == "jax":  # one by one its operations take seconds
        import jax

        both = jax.jit(both)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        both = tf.function(both, jit_compile=compiled)
    found = both([ops.convert_to_tensor(array) for array in arrays])
    return [ops.convert_to_numpy(figures) for figures in found]


def expected_row(array):
    return [
        np.max(np.abs(array)),
        np.count_nonzero(array),
        np.count_nonzero(~np.isfinite(array)),
    ]


def test_the_figures_are_those_of_numpy(compiled):
    arrays = random_arrays()
    for array in arrays[2:]:
        array[np.abs(array) < 0.5] = 0.0

    squares, rows = measured(compiled, arrays)

    expected = [expected_row(array) for array in arrays]
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    norms = [np.linalg.norm(array.astype("float64")) for array in arrays]
    np.testing.assert_allclose(np.sqrt(squares), norms, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_counted_and_makes_the_norm_not_finite(compiled, bad):
    arrays = random_arrays()
    arrays[1][:] = bad
    arrays[3][5, 1] = bad
    arrays[6][::7] = bad

    squares, rows = measured(compiled, arrays)

    expected = np.array([expected_row(array) for array in arrays])
    np.testing.assert_array_equal(rows[:, 1:], expected[:, 1:])
    bad_ones = [not np.isfinite(array).all() for array in arrays]
    assert [not np.isfinite(square) for square in squares] == bad_ones


def test_a_norm_of_many_entries_keeps_its_digits(compiled):
    (array,) = random_arrays([(4000, 1000)])

    squares, rows = measured(compiled, [array])

    norm = np.linalg.norm(array.astype("float64"))
    assert np.sqrt(squares[0]) == pytest.approx(norm, rel=2e-6)
    assert rows[0, 1] == np.count_nonzero(array)


def test_half_precision_does_not_overflow(compiled):
    squares, rows = measured(compiled, [np.full(100, 1000, "float16")])

    assert squares[0] == pytest.approx(1e8)
    assert rows[0].tolist() == pytest.approx([1e3, 100, 0])


def test_a_sparse_gradient_has_the_figures_of_the_dense_one(compiled, backend):
    if backend != "tensorflow":  # the only backend on which Keras has sparse ones
        assert keras.backend.backend() in {"jax", "torch"}
        return
    import tensorflow as tf

    values = np.random.default_rng(3).normal(size=(5, 4)).astype("float32")
    indices = tf.constant([7, 2, 7, 0, 2], tf.int64)
    sparse = tf.IndexedSlices(tf.constant(values), indices, (50, 4))
    dense = tf.convert_to_tensor(sparse).numpy()

    adapter = backends.current()
    # Not an argument: TensorFlow would take a sparse gradient apart.
    statistics = tf.function(
        lambda: adapter.gradient_statistics(adapter.joined([sparse])),
        jit_compile=compiled,
    )
    row = statistics()[0].numpy()

    assert row.tolist() == pytest.approx(expected_row(dense), rel=1e-6)
