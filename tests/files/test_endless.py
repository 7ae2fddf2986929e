"""Batched data without an end: an error before the work, or the first batches."""

import keras
import numpy as np
import pytest
from keras import layers

import kerasmem as km
from kerasmem.errors import DataError

X, Y = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")
Y = Y[:, :3]


class Batches(keras.utils.PyDataset):
    """The same batch again and again, without `__len__`."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, number):
        return X + number, Y


def tensorflow_batches():
    import tensorflow as tf

    return tf.data.Dataset.from_tensors((X, Y)).repeat()


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.one_backend
@pytest.mark.parametrize("make", [lambda: Batches(None), tensorflow_batches])
def test_what_reads_all_of_it_refuses_before_the_work(make, model, tmp_path):
    steps, match = [km.Prune(0.5)], "no end, so {} would not stop"
    with pytest.raises(DataError, match=match.format("fine-tuning")):
        km.compress(model, steps, data=make(), fine_tune_epochs=1)
    with pytest.raises(DataError, match=match.format("judging")):
        km.compress(model, steps, validation_data=make())
    with pytest.raises(DataError, match=match.format("the training")):
        km.distill(keras.models.clone_model(model), model, make())
    with pytest.raises(DataError, match=match.format("the prediction")):
        km.predict(model, make(), output=tmp_path / "y.npy")


@pytest.mark.one_backend
def test_a_number_of_batches_is_read_and_no_more(model, tmp_path):
    rows = km.predict(model, Batches(3), output=tmp_path / "y.npy")
    assert rows.shape == (12, 3)
    result = km.compress(
        model, km.Prune(0.5), data=Batches(2), validation_data=Batches(2),
        fine_tune_epochs=1, verbose=0,
    )  # fmt: skip
    assert result.report.after.metrics["loss"] >= 0


@pytest.mark.one_backend
def test_calibration_reads_the_first_batches_of_endless_data(model):
    scheme = km.Quantize("int8-static", calibration=km.Calibration(samples=64))
    result = km.compress(model, scheme, data=Batches(None), verbose=0)
    assert any(change.changed for change in result.changes)
