"""Predictions on disk equal `model.predict`, and a run that was broken off goes on."""

import math

import keras
import numpy as np
import pytest

from kerasmem.errors import DataError, ModelError, OutputError
from kerasmem.memory.predict import predict


class Batches(keras.utils.PyDataset):
    def __init__(self, x, size):
        super().__init__()
        self.x, self.size, self.asked = x, size, []

    def __len__(self):
        return math.ceil(len(self.x) / self.size)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.x[index * self.size : (index + 1) * self.size], None


class StopError(Exception):
    pass


@pytest.fixture
def model():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh")])


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(70, 3)).astype("float32")


def two_outputs(as_dict):
    inputs = keras.Input((3,))
    a, b = keras.layers.Dense(2)(inputs), keras.layers.Dense(1)(inputs)
    return keras.Model(inputs, {"left": a, "right": b} if as_dict else [a, b])


def forms(x):
    return {
        "array": x,
        "pair": (x, np.zeros(len(x))),
        "dataset": Batches(x, 32),
        "generator": ((x[i : i + 32], None) for i in range(0, len(x), 32)),
    }


@pytest.mark.parametrize("form", ["array", "pair", "dataset", "generator"])
def test_the_file_holds_what_predict_returns(model, x, tmp_path, form):
    path = tmp_path / "out.npy"
    found = predict(model, forms(x)[form], output=path)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(np.load(path), found)
    assert [each.name for each in tmp_path.iterdir()] == ["out.npy"]


@pytest.mark.parametrize("as_dict", [False, True])
def test_several_outputs_are_a_folder_of_files(x, tmp_path, as_dict):
    model = two_outputs(as_dict)
    found = predict(model, x, output=tmp_path / "out")
    expected = model.predict(x, verbose=0)
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        found,
        expected,
    )
    names = {each.name for each in (tmp_path / "out").iterdir()}
    assert names == ({"left.npy", "right.npy"} if as_dict else {"0.npy", "1.npy"})


def broken_off(model, data, path, after):
    """Predict until `after` batches were asked for, then fail."""
    whole, calls = model.predict_on_batch, []

    def until(x):
        calls.append(len(x))
        if len(calls) > after:
            raise StopError
        return whole(x)

    model.predict_on_batch = until
    try:
        with pytest.raises(StopError):
            predict(model, data, output=path, batch_size=8)
    finally:
        del model.predict_on_batch
    return calls


def test_a_run_that_was_broken_off_goes_on_where_it_was(model, x, tmp_path):
    path = tmp_path / "out.npy"
    broken_off(model, x, path, after=5)
    assert not path.exists()
    data = Batches(x, 8)
    broken_off(model, data, tmp_path / "second.npy", after=3)
    data.asked.clear()
    found = predict(model, data, output=tmp_path / "second.npy", batch_size=8)
    assert data.asked == list(range(3, 9))
    np.testing.assert_array_equal(found, predict(model, x, output=path, batch_size=8))


def test_bytes_after_the_last_saved_batch_are_not_trusted(model, x, tmp_path):
    path = tmp_path / "out.npy"
    broken_off(model, x, path, after=4)
    with (tmp_path / "out.npy.part" / "0.npy").open("ab") as file:
        file.write(b"\xff" * 13)
    found = predict(model, x, output=path, batch_size=8)
    np.testing.assert_allclose(found, model.predict(x, verbose=0), rtol=1e-6, atol=1e-7)


def test_an_optional_input_may_be_left_out(tmp_path):
    first = keras.Input((3,), name="a")
    second = keras.Input((3,), name="b", optional=True)
    outputs = keras.layers.Dense(2)(first)
    model = keras.Model({"a": first, "b": second}, outputs)
    x = {"a": np.ones((5, 3), "float32"), "b": None}
    assert predict(model, x, output=tmp_path / "out.npy").shape == (5, 2)


def test_another_model_begins_anew(model, x, tmp_path):
    path = tmp_path / "out.npy"
    broken_off(model, x, path, after=4)
    model.set_weights([2 * w for w in model.get_weights()])
    found = predict(model, x, output=path, batch_size=8)
    np.testing.assert_allclose(found, model.predict(x, verbose=0), rtol=1e-6, atol=1e-7)


def test_a_generator_cannot_be_gone_on_with(model, x, tmp_path):
    def batches():
        return ((x[i : i + 8], None) for i in range(0, len(x), 8))

    broken_off(model, batches(), tmp_path / "out.npy", after=4)
    with pytest.raises(DataError, match="A generator cannot be gone on with"):
        predict(model, batches(), output=tmp_path / "out.npy", batch_size=8)


def test_no_samples_are_refused_and_leave_nothing(model, x, tmp_path):
    with pytest.raises(DataError, match="There is nothing to predict"):
        predict(model, x[:0], output=tmp_path / "out.npy")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(model, x, tmp_path):
    with pytest.raises(OutputError, match="there is no folder"):
        predict(model, x, output=tmp_path / "none" / "out.npy")


def test_outputs_of_several_shapes_are_refused(tmp_path):
    model = keras.Sequential([keras.Input((None, 2)), keras.layers.Dense(1)])
    batches = [np.zeros((4, 5, 2), "float32"), np.zeros((4, 6, 2), "float32")]
    with pytest.raises(ModelError, match="pad the inputs to one length"):
        predict(model, iter((b, None) for b in batches), output=tmp_path / "out.npy")
