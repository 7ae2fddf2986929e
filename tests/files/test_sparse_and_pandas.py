"""Sparse matrices and pandas objects are samples as NumPy arrays are."""

import keras
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import kerasmem as km
from kerasmem.errors import DataError
from kerasmem.files.data import (
    drawn_batches,
    fit_arguments,
    hold_out,
    input_batches,
    sample_count,
    sample_inputs,
    take,
)
from tests.models import L, chain

random = np.random.default_rng(0)
X = np.where(random.random((40, 12)) < 0.2, random.normal(size=(40, 12)), 0)
X = X.astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
FORMS = ("coo", "csr", "sparse tensor", "data frame")


def samples(form):
    """Returns X and Y in another form."""
    if form == "coo":
        return scipy.sparse.coo_matrix(X), Y
    if form == "data frame":
        return pd.DataFrame(X), pd.Series(Y)
    if form == "sparse tensor" and keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.sparse.from_dense(X), Y
    if form == "sparse tensor" and keras.backend.backend() == "jax":
        from jax.experimental.sparse import BCOO

        return BCOO.fromdense(X), Y
    return scipy.sparse.csr_matrix(X), Y


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_the_dense_array(form):
    data = samples(form)
    assert sample_count(data) == 40
    np.testing.assert_array_equal(sample_inputs(data, 7), X[:7])
    batches = list(input_batches(data, 33, 8))
    assert [len(batch) for batch in batches] == [8, 8, 8, 8, 1]
    np.testing.assert_array_equal(np.concatenate(batches), X[:33])
    rows = [5, 3, 39]
    for found, dense in zip(take(data, rows), take((X, Y), rows), strict=True):
        np.testing.assert_array_equal(found, dense)
    train, held_out = (sample_inputs(part, 40) for part in hold_out(data))
    np.testing.assert_array_equal(np.concatenate([train, held_out]), X)
    for part in (0, 1):
        pairs = zip(
            drawn_batches(data, 20, 8, part=part),
            drawn_batches((X, Y), 20, 8, part=part),
            strict=True,
        )
        for found, dense in pairs:
            np.testing.assert_array_equal(found[0], dense[0])
            np.testing.assert_array_equal(found[1], dense[1])


@pytest.mark.one_backend
def test_batches_may_be_sparse_and_columns_may_be_named():
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(X)).batch(16)
    found = np.concatenate(list(input_batches((batches), 40, 16)))
    np.testing.assert_array_equal(found, X)
    frame = pd.DataFrame({"age": X[:, 0], "price": X[:, 1]})
    found = sample_inputs((dict(frame), Y), 3)
    np.testing.assert_array_equal(found["price"], X[:3, 1])
    assert isinstance(fit_arguments((frame, Y))["x"], np.ndarray)
    three_axes = tf.sparse.from_dense(X.reshape(40, 3, 4))
    with pytest.raises(DataError, match=r"two axes. Received: shape \(40, 3, 4\)"):
        sample_count(three_axes)


def test_compression_distillation_and_predictions_equal_those_of_dense_samples(
    tmp_path,
):
    def model(seed):
        keras.utils.set_random_seed(seed)
        made = chain((12,), L.Dense(8, activation="relu"), L.Dense(2))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
        return made

    results = []
    for data in ((X, Y), samples("sparse tensor")):
        steps = [km.Prune(0.5), km.Quantize("int8-static")]
        options = {"validation_data": data, "fine_tune_epochs": 1, "seed": 0}
        compressed = km.compress(model(0), steps, data=data, **options)
        keras.utils.set_random_seed(0)
        student = km.distill(model(0), model(1), data, epochs=1)
        km.predict(model(0), data[0], output=tmp_path / "predicted.npy")
        results.append(
            [
                *compressed.report.after.metrics.values(),
                student.get_weights()[0],
                np.load(tmp_path / "predicted.npy"),
            ]
        )
    for dense, other in zip(*results, strict=True):
        np.testing.assert_allclose(other, dense, rtol=1e-4, atol=1e-5)
