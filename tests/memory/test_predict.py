"""`km.predict` against `model.predict`, before and after an interruption."""

import math
import os
import resource
import shutil
import struct
import time

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


class StopError(Exception):
    pass


class Scale(keras.layers.Layer):
    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x):
        return x * self.factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


class Hidden(Scale):
    """A layer with a config that does not contain its factor."""

    def get_config(self):
        return keras.layers.Layer.get_config(self)


class Named(keras.Model):
    """Outputs `x + 1`, `x + 2` and so on, with the given names."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def call(self, x):
        return {name: x + i for i, name in enumerate(self.names, 1)}


def dense(activation="tanh", layer=None):
    keras.utils.set_random_seed(0)
    layers = [keras.Input((3,)), keras.layers.Dense(4, activation)]
    return keras.Sequential([*layers, *([layer] if layer else [])])


@pytest.fixture(scope="module")
def model():
    return dense()


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.npy"


def run(model, data, path, *, stop_after=None, before_batch=lambda number: None):
    """Return the predictions and the number of computed batches."""
    predict_on_batch, calls = model.predict_on_batch, []

    def counted(x):
        if len(calls) == stop_after:
            raise StopError
        before_batch(len(calls))
        calls.append(len(x))
        return predict_on_batch(x)

    model.predict_on_batch = counted
    try:
        predictions = predict(model, data, output=path, batch_size=SIZE)
    except StopError:
        predictions = None
    finally:
        del model.predict_on_batch
    return predictions, len(calls)


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


def make_folder(part, precious):
    part.mkdir()
    (part / "notes.txt").write_text("precious")


def make_numbered_file(part, precious):
    part.mkdir()
    (part / "0.npy").write_text("precious")


STRANGE_PARTS = {
    "folder": make_folder,
    "numbered file": make_numbered_file,
    "link": lambda part, precious: part.symlink_to(precious),
    "file": lambda part, precious: part.write_text("precious"),
    "fifo": lambda part, precious: os.mkfifo(part),
}


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", STRANGE_PARTS)
def test_a_part_folder_of_other_origin_is_refused(model, x, path, kind):
    precious = path.parent / "precious"
    precious.mkdir()
    (precious / "0.npy").write_text("precious")
    STRANGE_PARTS[kind](path.parent / "out.npy.part", precious)
    before = contents(path.parent)
    with pytest.raises(OutputError, match=r"Next: rename it or\s+remove it"):
        predict(model, x, output=path)
    assert contents(path.parent) == before


@pytest.mark.parametrize("form", FORMS)
def test_an_interrupted_run_computes_one_batch_again(model, x, path, form):
    run(model, forms(x)[form], path, stop_after=5)
    assert not path.exists()
    predictions, computed = run(model, forms(x)[form], path)
    assert computed == 1 + 9 - 5
    assert_equal(predictions, model, x)


@pytest.mark.one_backend
def test_a_killed_run_computes_one_batch_again(model, x, tmp_path):
    part, killed = tmp_path / "out.npy.part", tmp_path / "killed.npy.part"
    run(model, x, tmp_path / "out.npy", before_batch=lambda n: (
        shutil.copytree(part, killed) if n == 6 else None
    ))  # fmt: skip
    predictions, computed = run(model, x, tmp_path / "killed.npy")
    assert computed == 1 + 9 - 6
    assert_equal(predictions, model, x)


def changed_rows(x, first):
    x = x.copy()
    x[first:] += 1
    return x


CHANGES = {
    "weights": (dense, lambda model: model.set_weights([2 * w for w in model.weights])),
    "activation": (dense, lambda model: dense("relu")),
    "constant": (lambda: dense(layer=Scale(2.0)), lambda model: dense(layer=Scale(3))),
    "hidden constant": (
        lambda: dense(layer=Hidden(2.0)),
        lambda model: setattr(model.layers[-1], "factor", 3.0),
    ),
    "hidden constant, a little": (
        lambda: dense(layer=Hidden(1.0)),
        lambda model: setattr(model.layers[-1], "factor", 1.005),
    ),
}


@pytest.mark.one_backend
@pytest.mark.parametrize("change", CHANGES)
def test_rows_of_another_model_are_not_used(x, path, change):
    build, change_model = CHANGES[change]
    model = build()
    run(model, x, path, stop_after=5)
    model = change_model(model) or model
    model.predict_function = None
    predictions, computed = run(model, x, path)
    assert computed == 9
    assert_equal(predictions, model, x)


CONSTANT = [1.0]


class OfModule(keras.layers.Layer):
    """A layer that computes with a constant that no config or attribute contains."""

    def call(self, x):
        return x * CONSTANT[0]


@pytest.mark.one_backend
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_rows_are_compared_to_rounding(x, path, dtype):
    class Cast(OfModule):
        def call(self, x):
            return keras.ops.cast(200.0 * super().call(x), dtype)

    model = dense(layer=Cast())
    CONSTANT[0] = 1.0
    run(model, x, path, stop_after=5)
    try:
        CONSTANT[0] = 1.005
        model.predict_function = None
        predictions, computed = run(model, x, path)
        assert computed == 9
        assert_equal(predictions, model, x)
    finally:
        CONSTANT[0] = 1.0


@pytest.mark.one_backend
def test_a_finished_result_is_not_taken_for_an_interrupted_run(model, x, tmp_path):
    predict(two_outputs(), x, output=tmp_path / "out.part")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=r"Next: rename it or\s+remove it"):
        predict(model, x, output=tmp_path / "out")
    assert contents(tmp_path) == before


@pytest.mark.one_backend
def test_a_numbered_file_of_the_user_is_refused(model, x, path):
    run(model, x, path, stop_after=5)
    (path.parent / "out.npy.part" / "7.npy").write_text("precious")
    before = contents(path.parent)
    with pytest.raises(OutputError, match=r"Next: rename it or\s+remove it"):
        predict(model, x, output=path)
    assert contents(path.parent) == before


@pytest.mark.one_backend
def test_a_record_of_more_rows_than_its_batch_is_not_read(model, x, path):
    run(model, x, path, stop_after=5)
    part = path.parent / "out.npy.part"
    os.truncate(part / "0.npy", 4 << 30)
    journal = bytearray((part / "batches.bin").read_bytes())
    journal[:8] = struct.pack("<Q", 1 << 62)
    (part / "batches.bin").write_bytes(journal)
    begin = time.process_time()
    predictions, computed = run(model, x, path)
    assert time.process_time() - begin < 2
    assert computed == 9
    assert_equal(predictions, model, x)


@pytest.mark.one_backend
def test_rows_of_another_dtype_policy_are_not_used(x, path):
    single, half = (
        keras.Sequential([keras.Input((3,)), keras.layers.Rescaling(0.1, dtype=dtype)])
        for dtype in ("float32", "float16")
    )
    run(single, x, path, stop_after=5)
    predictions, computed = run(half, x, path)
    assert computed == 9
    assert predictions.dtype == np.float16
    assert_equal(predictions, half, x)


@pytest.mark.one_backend
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", [0, 20])
def test_rows_of_other_data_are_not_used(model, x, path, form, first):
    run(model, forms(x)[form], path, stop_after=5)
    other = changed_rows(x, first)
    predictions, computed = run(model, forms(other)[form], path)
    assert computed == (9 if first == 0 else 1 + 9 - first // SIZE)
    assert_equal(predictions, model, other)


@pytest.mark.one_backend
def test_rows_of_another_batch_size_are_not_used(model, x, path):
    run(model, x, path, stop_after=5)
    predictions = predict(model, x, output=path, batch_size=SIZE - 2)
    assert_equal(predictions, model, x)


@pytest.mark.one_backend
def test_a_config_that_raises_is_no_error(x, path):
    class Unsaved(Scale):
        def get_config(self):
            raise AttributeError

    assert_equal(
        predict(dense(layer=Unsaved(2)), x, output=path), dense(layer=Scale(2)), x
    )


@pytest.mark.one_backend
def test_rows_of_longer_data_are_not_used(model, x, path):
    run(model, x, path, stop_after=8)
    predictions, computed = run(model, x[:32], path)
    assert computed == 1
    assert_equal(predictions, model, x[:32])


@pytest.mark.one_backend
def test_a_stateful_model_starts_from_the_beginning(path):
    x = np.random.default_rng(0).normal(size=(6 * SIZE, 2, 3)).astype("float32")
    inputs = keras.Input(batch_shape=(SIZE, 2, 3))
    model = keras.Model(inputs, keras.layers.SimpleRNN(2, stateful=True)(inputs))
    run(model, x, path, stop_after=3)
    model.layers[-1].reset_states()
    predictions, _ = run(model, x, path)
    model.layers[-1].reset_states()
    expected = [model.predict_on_batch(x[i : i + SIZE]) for i in range(0, 48, SIZE)]
    np.testing.assert_allclose(predictions, np.concatenate(expected), rtol=1e-5)


def truncate(size):
    return lambda file: os.truncate(file, size)


def flip(place):
    def flipped(file):
        content = bytearray(file.read_bytes())
        content[place] ^= 4
        file.write_bytes(content)

    return flipped


DAMAGES = {
    "rows cut": ("0.npy", truncate(200)),
    "rows gone": ("0.npy", os.unlink),
    "rows grown": ("0.npy", truncate(10_000)),
    "rows changed": ("0.npy", flip(-5)),
    "header changed": ("0.npy", flip(70)),
    "entries cut": ("batches.bin", truncate(30)),
    "entries gone": ("batches.bin", os.unlink),
    "entries of zeros": ("batches.bin", truncate(1000)),
    "row count changed": ("batches.bin", flip(48)),
    "large row count": ("batches.bin", flip(54)),
}


@pytest.mark.one_backend
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_rows_are_computed_again(model, x, path, damage):
    run(model, x, path, stop_after=5)
    name, change = DAMAGES[damage]
    change(path.parent / "out.npy.part" / name)
    predictions, _ = run(model, x, path)
    assert_equal(predictions, model, x)
    assert [each.name for each in path.parent.iterdir()] == ["out.npy"]


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["0.npy", "batches.bin", "outputs.json"])
@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "folder", "empty"])
def test_a_damaged_part_folder_touches_no_other_file(model, x, path, name, kind):
    precious = path.parent / "precious"
    precious.write_bytes(b"p" * 10_000)
    run(model, x, path, stop_after=5)
    file = path.parent / "out.npy.part" / name
    file.unlink()
    {
        "link": lambda: file.symlink_to(precious),
        "hard link": lambda: os.link(precious, file),
        "fifo": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "empty": file.touch,
    }[kind]()
    is_refused = kind != "empty" or name == "outputs.json"
    if is_refused:
        with pytest.raises(OutputError, match=r"Next: rename it or\s+remove it"):
            run(model, x, path)
    else:
        assert_equal(run(model, x, path)[0], model, x)
    assert precious.read_bytes() == b"p" * 10_000


@pytest.mark.one_backend
def test_two_runs_cannot_write_the_same_rows(model, x, path):
    def second_run(number):
        if number == 1:
            with pytest.raises(OutputError, match="Another process writes"):
                predict(dense(), x[:SIZE], output=path)

    predictions, _ = run(model, x, path, before_batch=second_run)
    assert_equal(predictions, model, x)


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
def test_a_full_disk_keeps_the_finished_rows(model, x, path, full_at):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, limits[1]))
    try:
        with pytest.raises(OutputError, match="Finished rows are kept"):
            run(model, x, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    predictions, computed = run(model, x, path)
    assert computed == (9 if full_at == 100 else 1 + 9 - (500 - 128) // (SIZE * 16))
    assert_equal(predictions, model, x)


@pytest.mark.one_backend
@pytest.mark.parametrize("several", [False, True])
def test_a_failed_last_move_keeps_the_rows(x, path, several):
    model = two_outputs() if several else dense()

    def occupy(number):
        if number == 8:
            path.mkdir()
            (path / "thesis.txt").write_text("years of work")

    with pytest.raises(OutputError, match="Expected output to be a new"):
        run(model, x, path, before_batch=occupy)
    assert (path / "thesis.txt").read_text() == "years of work"
    shutil.rmtree(path)
    predictions, computed = run(model, x, path)
    assert computed == 1
    assert_equal(predictions, model, x)


@pytest.mark.one_backend
@pytest.mark.parametrize("batch_size", [0, -1, 1.5, "x", None, True])
def test_an_invalid_batch_size_is_refused(model, x, path, batch_size):
    with pytest.raises(ConfigError, match=f"batch_size={batch_size!r}"):
        predict(model, x, output=path, batch_size=batch_size)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["none/out.npy", "a\0b", "a" * 300, "a" * 252, "."])
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
