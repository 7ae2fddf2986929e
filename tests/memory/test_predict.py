"""`km.predict` against `model.predict`."""

import math
import resource

import keras
import numpy as np
import pytest

from kerasmem.errors import ConfigError, DataError, ModelError, OutputError
from kerasmem.memory.predict import predict

SIZE, ROWS = 8, 70


class Batches(keras.utils.PyDataset):
    def __init__(self, x, size=SIZE):
        super().__init__()
        self.x, self.size = x, size

    def __len__(self):
        return math.ceil(len(self.x) / self.size)

    def __getitem__(self, index):
        return self.x[index * self.size : (index + 1) * self.size], None


class Named(keras.Model):
    """Outputs `x + 1`, `x + 2` and so on, with the given names."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def call(self, x):
        return {name: x + i for i, name in enumerate(self.names, 1)}


def dense():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh")])


@pytest.fixture(scope="module")
def model():
    return dense()


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.npy"


def assert_equal(predictions, model, x):
    batches = [model.predict_on_batch(x[i : i + SIZE]) for i in range(0, len(x), SIZE)]
    expected = keras.tree.map_structure(lambda *a: np.concatenate(a), *batches)
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        predictions,
        expected,
    )


def contents(folder):
    """Return the content of all files, links and folders in a folder."""
    return {
        str(path.relative_to(folder)): path.readlink()
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else path.lstat().st_mode
        for path in folder.rglob("*")
    }


def two_outputs(as_dict=True):
    inputs = keras.Input((3,))
    a, b = keras.layers.Dense(2)(inputs), keras.layers.Dense(1)(inputs)
    return keras.Model(inputs, {"left": a, "0": b} if as_dict else [a, b])


def forms(x):
    return {
        "array": x,
        "pair": (x, np.zeros(len(x))),
        "dataset": Batches(x),
        "generator": ((x[i : i + SIZE], None) for i in range(0, len(x), SIZE)),
    }


FORMS = ["array", "pair", "dataset", "generator"]


@pytest.mark.parametrize("form", FORMS)
def test_predictions_equal_those_of_keras(model, x, path, form):
    path.write_bytes(b"an earlier file")
    predictions = predict(model, forms(x)[form], output=path, batch_size=SIZE)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(predictions, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(np.load(path), predictions)
    assert [each.name for each in path.parent.iterdir()] == ["out.npy"]


@pytest.mark.parametrize("as_dict", [False, True])
def test_several_outputs_are_numbered_files_in_a_folder(x, tmp_path, as_dict):
    model, output = two_outputs(as_dict), tmp_path / "out"
    output.mkdir()
    predictions = predict(model, x, output=output)
    assert_equal(predictions, model, x)
    assert isinstance(predictions, dict if as_dict else list)
    names = {each.name for each in output.iterdir()}
    assert names == {"0.npy", "1.npy", "outputs.json"}
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_single_output_named_0_is_returned_as_a_dict(x, path):
    predictions = predict(Named(["0"]), x, output=path)
    np.testing.assert_array_equal(predictions["0"], x + 1)


@pytest.mark.one_backend
def test_output_names_are_not_paths(x, tmp_path):
    evil = f"{tmp_path}/evil"
    names = ["../evil", evil, "", ".", "/", "a" * 300, "a\0b", "0", "a/b", "\\", "NUL"]
    folder = tmp_path / "inner"
    folder.mkdir()
    predictions = predict(Named(names), x, output=folder / "out")
    assert set(predictions) == set(names)
    for number, name in enumerate(names, 1):
        np.testing.assert_array_equal(predictions[name], x + number)
    assert [each.name for each in tmp_path.iterdir()] == ["inner"]
    assert [each.name for each in folder.iterdir()] == ["out"]


@pytest.mark.one_backend
@pytest.mark.parametrize("several", [False, True])
def test_an_existing_folder_is_refused_and_unchanged(x, tmp_path, several):
    output = tmp_path / "results"
    output.mkdir()
    (output / "thesis.txt").write_text("years of work")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=r"Expected output to be a new (file|folder)"):
        predict(two_outputs() if several else dense(), x, output=output)
    assert contents(tmp_path) == before


@pytest.mark.one_backend
def test_an_existing_link_is_refused_and_not_followed(model, x, tmp_path):
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "out.npy").symlink_to("precious")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match="Expected output to be a new file"):
        predict(model, x, output=tmp_path / "out.npy")
    assert contents(tmp_path) == before


def test_bfloat16_outputs_are_float32(x, path):
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        model = dense()
    finally:
        keras.mixed_precision.set_dtype_policy(policy)
    predictions = predict(model, x, output=path)
    assert predictions.dtype == np.float32
    expected = np.asarray(model.predict(x, verbose=0)).astype("float32")
    np.testing.assert_array_equal(np.load(path), expected)


@pytest.mark.one_backend
@pytest.mark.parametrize("full_at", [100, 500])
def test_a_full_disk_leaves_the_earlier_file(model, x, path, full_at):
    path.write_bytes(b"an earlier file")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, limits[1]))
    try:
        with pytest.raises(OutputError, match="Nothing was written"):
            predict(model, x, output=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(path.parent) == {"out.npy": b"an earlier file"}


@pytest.mark.one_backend
@pytest.mark.parametrize("several", [False, True])
def test_a_folder_that_appears_meanwhile_is_unchanged(x, path, several):
    def batches():
        yield x, None
        path.mkdir()
        (path / "thesis.txt").write_text("years of work")

    with pytest.raises(OutputError, match="Could not write"):
        predict(two_outputs() if several else dense(), batches(), output=path)
    assert [each.name for each in path.parent.iterdir()] == ["out.npy"]
    assert (path / "thesis.txt").read_text() == "years of work"


@pytest.mark.one_backend
@pytest.mark.parametrize("batch_size", [0, -1, 1.5, "x", None, True])
def test_an_invalid_batch_size_is_refused(model, x, path, batch_size):
    with pytest.raises(ConfigError, match=f"batch_size={batch_size!r}"):
        predict(model, x, output=path, batch_size=batch_size)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["none/out.npy", "a\0b", "a" * 300, "."])
def test_an_output_that_cannot_be_written_is_refused(model, x, tmp_path, name):
    with pytest.raises(OutputError, match=r"Next: "):
        predict(model, x, output=f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


def test_an_optional_input_may_be_left_out(path):
    first = keras.Input((3,), name="a")
    second = keras.Input((3,), name="b", optional=True)
    outputs = keras.layers.Dense(2)(first)
    model = keras.Model({"a": first, "b": second}, outputs)
    x = {"a": np.ones((5, 3), "float32"), "b": None}
    assert predict(model, x, output=path).shape == (5, 2)


@pytest.mark.one_backend
def test_data_without_samples_is_refused(model, x, tmp_path):
    with pytest.raises(DataError, match="Expected at least one sample"):
        predict(model, x[:0], output=tmp_path / "out.npy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.one_backend
def test_outputs_of_several_shapes_are_refused(path):
    model = keras.Sequential([keras.Input((None, 2)), keras.layers.Dense(1)])
    batches = [np.zeros((4, 5, 2), "float32"), np.zeros((4, 6, 2), "float32")]
    with pytest.raises(ModelError, match=r"pad the inputs to\s+one length"):
        predict(model, iter((b, None) for b in batches), output=path)


@pytest.mark.one_backend
def test_outputs_of_text_are_refused(path):
    layer = keras.layers.StringLookup(vocabulary=["a", "b"], invert=True)
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer])
    with pytest.raises(ModelError, match="Expected numeric outputs"):
        predict(model, np.ones((4, 1), "int64"), output=path)
