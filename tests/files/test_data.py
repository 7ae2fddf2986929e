"""Samples come in several forms; each reaches `fit` right or is refused in one line."""

import sys
import types
import zipfile

import keras
import numpy as np
import pytest

from kerasmem.errors import DataError
from kerasmem.extras.litert.arguments import call_flat
from kerasmem.files.data import (
    LoadedData,
    check_classes,
    check_data,
    check_labels,
    fit_arguments,
    hold_out,
    load_data,
    sample_count,
    sample_inputs,
    source,
)
from kerasmem.files.data.check import flat_samples
from kerasmem.files.data.tokens import token_samples

X = np.arange(12, dtype="float32").reshape(6, 2)
Y = np.arange(6, dtype="int32")


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return X[index * 3 :][:3], Y[index * 3 :][:3]


def tf_dataset():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


def dense(**named_shapes):
    inputs = {
        name: keras.Input(shape, name=name) for name, shape in named_shapes.items()
    }
    flat = [keras.layers.Flatten()(tensor) for tensor in inputs.values()]
    if len(flat) == 1:
        return keras.Model(*inputs.values(), keras.layers.Dense(2)(*flat))
    merged = keras.layers.Concatenate()(flat)
    return keras.Model(list(inputs.values()), keras.layers.Dense(2)(merged))


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


# load_data


@pytest.mark.one_backend
def test_plain_arrays_are_the_training_split(tmp_path):
    loaded = load_data(save(tmp_path / "d.npz", x=X, y=Y, sample_weight=X[:, 0]))
    x, y, weight = loaded.train
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    np.testing.assert_array_equal(weight, X[:, 0])
    assert loaded.test is None


@pytest.mark.one_backend
def test_a_test_split_is_kept_apart(tmp_path):
    path = save(tmp_path / "d.npz", x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2])
    loaded = load_data(str(path))
    assert [len(part) for part in loaded.train + loaded.test] == [6, 6, 2, 2]


@pytest.mark.one_backend
def test_x_alone_is_enough(tmp_path):
    (x,) = load_data(save(tmp_path / "d.npz", x=X)).train
    np.testing.assert_array_equal(x, X)


@pytest.mark.one_backend
def test_named_arrays_become_dicts_in_either_split(tmp_path):
    path = save(
        tmp_path / "d.npz",
        x_train_left=X,
        x_train_right=X + 1,
        y_train=Y,
        x_test_left=X[:1],
        x_test_right=X[:1],
        y_test=Y[:1],
    )
    (x, y), (x_test, _) = (load := load_data(path)).train, load.test
    assert list(x) == ["left", "right"] == list(x_test)
    np.testing.assert_array_equal(x["right"], X + 1)
    assert y.shape == (6,)


@pytest.mark.one_backend
def test_other_arrays_in_the_file_are_left_alone(tmp_path):
    assert len(load_data(save(tmp_path / "d.npz", x=X, y=Y, names=Y)).train) == 2


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": X, "y": Y}, r"contains no array x or x_train.*numpy\.savez"),
        ({"x": X, "x_test": X, "y_test": Y[:5]}, r"same length.*x has 6, y has 5"),
        ({"x": X, "y_test": Y}, "contains no array x_test"),
        ({"x": X, "y": Y[:4]}, r"same length.*x has 6, y has 4 samples"),
        ({"x": X, "x_train": X}, "contains x twice: also as 'x_train'"),
        ({"x": X, "x_left": X}, "contains x twice: also as 'x_left'"),
        ({"x": X, "sample_weight": Y}, "sample_weight without y"),
        ({"x": X[:0], "y": Y[:0]}, "data is empty.*x has 0"),
        ({"x": np.float32(3)}, "one row per sample.*which has no rows"),
        (
            {"x": np.array([{}, []], dtype=object)},
            "not a valid .npz.*it contains Python obj",
        ),
    ],
)
def test_arrays_that_are_no_samples_are_refused(tmp_path, arrays, message):
    path = save(tmp_path / "d.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_data(path)


@pytest.mark.one_backend
def test_files_that_are_no_npz_are_refused(tmp_path):
    sound = save(tmp_path / "sound.npz", x=X, y=Y).read_bytes()
    np.save(tmp_path / "bare.npy", X)
    files = {
        "truncated.npz": sound[: len(sound) // 2],
        "text.npz": b"x,y\n1,2\n",
        "empty.npz": b"",
        "bare.npz": (tmp_path / "bare.npy").read_bytes(),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            DataError, match=rf"{name} is not a valid \.npz file"
        ) as caught:
            load_data(tmp_path / name)
        assert "pickle" not in str(caught.value)


@pytest.mark.one_backend
def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(DataError, match="There is no data file"):
            load_data(path)


@pytest.fixture
def functions(monkeypatch):
    module = types.ModuleType("my_data")
    module.pair = lambda: (X, Y)
    module.splits = lambda: ((X, Y), (X[:2], Y[:2]))
    module.loaded = lambda: LoadedData((X, Y))
    module.batches = Batches
    module.number = lambda: 3
    module.forgetful = lambda: None
    module.failing = lambda: {}[7]
    monkeypatch.setitem(sys.modules, "my_data", module)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("name", "has_test"), [("pair", False), ("splits", True), ("loaded", False)]
)
def test_a_function_names_the_data(functions, name, has_test):
    loaded = load_data(f"my_data:{name}")
    np.testing.assert_array_equal(loaded.train[0], X)
    assert (loaded.test is not None) == has_test


@pytest.mark.one_backend
def test_a_function_may_return_a_dataset(functions):
    assert isinstance(load_data("my_data:batches").train, Batches)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("my_data:nothing", "Module 'my_data' has no function 'nothing'"),
        ("no_such_module_here:f", "Cannot import the data function 'no_such_module"),
        (
            "my_data:number",
            "'my_data:number' returned no samples. Expected data as x.*data=3",
        ),
        ("my_data:forgetful", "'my_data:forgetful' returned no samples.*data=None"),
        ("my_data:failing", "function 'my_data:failing' raised KeyError: 7"),
    ],
)
def test_a_function_that_gives_no_data_is_refused(functions, spec, message):
    with pytest.raises(DataError, match=message):
        load_data(spec)


# fit_arguments, sample_count, sample_inputs


@pytest.mark.one_backend
def test_arrays_become_named_arguments_with_a_batch_size():
    assert list(fit_arguments(X)) == ["x", "batch_size"]
    assert list(fit_arguments((X,), 7).values())[1] == 7
    assert list(fit_arguments((X, Y, Y))) == ["x", "y", "sample_weight", "batch_size"]
    assert fit_arguments({"a": X})["x"] == {"a": X}


@pytest.mark.one_backend
def test_batched_data_is_given_as_it_is():
    for data in (Batches(), tf_dataset(), iter([(X, Y)])):
        assert fit_arguments(data) == {"x": data}


@pytest.mark.parametrize("data", [(X, Y), Batches(), tf_dataset()])
def test_fit_takes_what_fit_arguments_returns(data):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    prediction = keras.ops.convert_to_numpy(model(X))[:, 0]
    loss = model.evaluate(**fit_arguments(data), verbose=0)
    assert loss == pytest.approx(np.mean((prediction - Y) ** 2), rel=1e-5)


@pytest.mark.one_backend
@pytest.mark.parametrize("data", ["x.npz", 3, (), (X, Y, Y, Y), None])
def test_what_is_no_data_is_refused(data):
    with pytest.raises(DataError, match="Received: "):
        fit_arguments(data)


@pytest.mark.one_backend
def test_samples_are_counted_where_that_takes_no_pass():
    assert [sample_count(X), sample_count(({"a": X}, Y)), sample_count([X, X])] == [
        6
    ] * 3
    assert sample_count(Batches()) is None


@pytest.mark.parametrize("data", [X, (X, Y), Batches(), tf_dataset()])
def test_the_first_inputs_come_as_numpy(data):
    first = sample_inputs(data, 2)
    assert isinstance(first, np.ndarray)
    np.testing.assert_array_equal(first, X[:2])


@pytest.mark.one_backend
def test_the_first_inputs_keep_the_structure_of_x():
    first = sample_inputs(({"a": X, "b": Y}, Y), 1)
    assert {name: array.shape for name, array in first.items()} == {
        "a": (1, 2),
        "b": (1,),
    }


@pytest.mark.one_backend
def test_a_generator_is_not_eaten_for_a_sample():
    with pytest.raises(DataError, match="generator can be read only once"):
        sample_inputs(iter([(X, Y)]), 1)


# hold_out


@pytest.mark.one_backend
def test_the_last_tenth_is_held_out():
    rows = np.arange(25)
    (x, y), (x_held, y_held) = hold_out(({"a": rows}, rows))
    assert y.tolist() + y_held.tolist() == rows.tolist()
    assert x["a"].tolist() == y.tolist()
    assert y_held.tolist() == x_held["a"].tolist() == [23, 24]


@pytest.mark.one_backend
def test_at_least_one_sample_is_held_out():
    assert [len(part) for (part,) in hold_out(np.zeros((2, 1)))] == [1, 1]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (X[:1], "Expected at least 2 samples .*Received: 1"),
        (Batches(), "only from arrays"),
    ],
)
def test_what_cannot_be_split_is_refused(data, message):
    with pytest.raises(DataError, match=message):
        hold_out(data)


# check_data


@pytest.mark.parametrize("data", [(X, Y), X, Batches(), tf_dataset(), {"x": X}, [X]])
def test_data_fits_the_model_that_takes_its_shape_and_no_other(data):
    check_data(dense(x=(2,)), data)
    with pytest.raises(DataError, match=r"takes shape \(None, 3\)"):
        check_data(dense(x=(3,)), data)


def test_a_sequential_is_checked_like_any_other():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    check_data(model, (X, Y))
    with pytest.raises(DataError, match=r"takes shape \(None, 2\)"):
        check_data(model, (X.T, Y[:2]))


def test_a_missing_last_axis_of_one_fits_as_in_keras():
    model = dense(x=(2, 1))
    check_data(model, X)
    assert model(X).shape == (6, 2)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X[:, :1], Y), r"input 'x' .* takes shape \(None, 2\).*x of shape \(6, 1\)"),
        ((X, Y[:3]), "same length. Received: x has 6, y has 3 samples"),
        ((X, {"a": Y, "b": Y[:1]}), "y_a has 6, y_b has 1"),
        (X[:0], "data is empty"),
        (X.astype(str), "takes numbers .float32.. Received: x of dtype <U"),
        ([X, X], r"has 1 input, \['x'\]. Received: 2 arrays"),
        ({"z": X}, r"inputs are named \['x'\]. Received: data named \['z'\]"),
        (([[0.5, 1.0]], Y), r"x as a list of values, the first 0.5.* np.asarray\(x\)"),
        ((X, [1, 2]), r"y as a list of values, the first 1\. .* np.asarray\(y\)"),
        (
            (X, {"x": Y}),
            "has one output. Expected: labels in one array.*labels named x",
        ),
    ],
)
def test_data_that_does_not_fit_is_refused_in_one_line(data, message):
    with pytest.raises(DataError, match=message) as caught:
        check_data(dense(x=(2,)), data)
    assert "\n" not in str(caught.value)


@pytest.mark.one_backend
def test_each_named_input_is_checked_by_its_name():
    model = dense(left=(2,), right=(5,))
    check_data(model, {"right": np.zeros((4, 5)), "left": np.zeros((4, 2))})
    check_data(model, [np.zeros((4, 2)), np.zeros((4, 5))])
    with pytest.raises(DataError, match="input 'right'"):
        check_data(model, {"left": np.zeros((4, 2)), "right": np.zeros((4, 2))})
    with pytest.raises(DataError, match=r"\['right'\] missing"):
        check_data(model, ({"left": X}, Y))


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_a_model_with_inputs_in_a_dict_is_given_their_keys():
    inputs = {
        key: keras.Input((size,), name=name)
        for key, size, name in (("b", 2, "one"), ("a", 5, "two"))
    }
    joined = keras.layers.Concatenate()([inputs["b"], inputs["a"]])
    model = keras.Model(inputs, joined)
    data = {"b": np.full((4, 2), 2.0), "a": np.full((4, 5), 5.0)}
    check_data(model, data)
    with pytest.raises(
        DataError, match=r"are named \['a', 'b'\].*named \['one', 'two'\]"
    ):
        check_data(model, {"one": data["b"], "two": data["a"]})
    flat = flat_samples(model, data, 3)
    assert [array.shape for array in flat] == [(3, 5), (3, 2)]
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(call_flat(model, flat)[0]),
        keras.ops.convert_to_numpy(model(data))[:3],
    )


@pytest.mark.one_backend
def test_a_dataset_without_batches_is_refused():
    with pytest.raises(DataError, match=r"y = .*no rows. Next: batch the dataset"):
        check_data(dense(x=(2,)), tf_dataset().unbatch())


@pytest.fixture(params=["list", "dict"])
def two_outputs(request):
    """A model with the outputs p and q, whose dict has other names than its layers."""
    x = keras.Input((2,))
    named = request.param == "dict"
    p, q = (keras.layers.Dense(1, name=n)(x) for n in (("a", "b") if named else "pq"))
    return keras.Model(x, {"p": p, "q": q} if named else [p, q])


@pytest.mark.one_backend
@pytest.mark.parametrize("names", ["p", "pz", "pqz", "ab"])
def test_labels_with_other_names_than_the_outputs_are_refused(two_outputs, names):
    two_outputs.compile("sgd", "mse")
    message = f"has the outputs p, q; the data has the labels {', '.join(names)}."
    with pytest.raises(DataError, match=message):
        check_data(two_outputs, (X, dict.fromkeys(names, Y)))


def test_labels_named_after_the_outputs_pass_in_any_order(two_outputs):
    two_outputs.compile("sgd", "mse", jit_compile=False)
    labels = {"q": Y, "p": Y}
    check_data(two_outputs, (X, labels))
    assert two_outputs.evaluate(X, labels, verbose=0)[0] > 0


def test_labels_may_be_missing_only_for_an_output_without_a_loss(two_outputs):
    two_outputs.compile("sgd", {"p": "mse", "q": None}, jit_compile=False)
    check_data(two_outputs, (X, {"p": Y}))
    # Keras would take these for the labels of p.
    with pytest.raises(DataError, match="the data has the labels q"):
        check_data(two_outputs, (X, {"q": Y}))


@pytest.mark.one_backend
def test_a_sequential_takes_no_named_labels():
    with pytest.raises(DataError, match="one array. Received: labels named a, b"):
        check_data(
            keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
            (X, {"a": Y, "b": Y}),
        )


@pytest.mark.one_backend
def test_a_model_that_is_not_compiled_may_get_its_loss_later(two_outputs):
    check_data(two_outputs, (X, {"p": Y}))
    with pytest.raises(DataError, match="p"):
        check_data(two_outputs, (X, {"r": Y}))


@pytest.mark.one_backend
def test_an_empty_dataset_is_refused():
    with pytest.raises(DataError, match=r"data is empty\. Received: _TakeDataset"):
        check_data(dense(x=(2,)), tf_dataset().take(0))


@pytest.mark.one_backend
def test_a_subclassed_model_is_checked_for_lengths_only():
    class Own(keras.Model):
        def call(self, inputs):
            return inputs

    check_data(Own(), (X, Y))
    with pytest.raises(DataError, match="same length"):
        check_data(Own(), (X, Y[:2]))


# check_classes

SPARSE = keras.losses.SparseCategoricalCrossentropy


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        keras.losses.sparse_categorical_crossentropy,
        SPARSE(from_logits=True),
    ],
    ids=["name", "function", "object"],
)
def test_a_label_of_no_class_is_refused(loss):
    model = dense(x=(2,))
    model.compile("sgd", loss)
    for kind in ("int32", "uint8", "float32"):
        check_classes(model, (X, (Y % 2).astype(kind)))
        with pytest.raises(
            DataError, match=r"has 2 classes. .* 0 to 1. .* from 0(.0)? to 2"
        ):
            check_classes(model, (X, (Y % 3).astype(kind)))
    with pytest.raises(DataError, match="from -1 to 0"):
        check_classes(model, (X, Y % 2 - 1))


@pytest.mark.one_backend
def test_labels_that_may_mean_something_else_are_let_through(two_outputs):
    model, own, sparse = dense(x=(2,)), keras.Sequential(), SPARSE()
    own.compile("sgd", sparse)
    check_classes(own, (X, Y))
    check_classes(model, (X, Y))
    for loss in ("mse", SPARSE(ignore_class=-1)):
        model.compile("sgd", loss)
        check_classes(model, (X, Y))
    model.compile("sgd", sparse)
    check_classes(model, (X, Y, (Y < 2).astype("float32")))
    check_classes(model, (X, np.array(list("abcdef"))))
    check_classes(model, X)
    check_classes(model, Batches())
    two_outputs.compile("sgd", sparse)
    check_classes(two_outputs, (X, {"p": Y, "q": Y}))
    which = keras.Sequential([keras.Input((None, 1)), keras.layers.Flatten()])
    which.compile("sgd", sparse)
    check_classes(which, (X[..., None], Y))
    model.compile("sgd", sparse)
    check_classes(model, (X[:0], Y[:0]))
    steps = keras.Sequential([keras.Input((2, 1)), keras.layers.Dense(2)])
    steps.compile("sgd", sparse)
    check_classes(steps, (X, X))


# check_labels

ENTRYWISE = ("mse", "mae", "hinge", "binary_crossentropy", keras.losses.Huber())


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "loss", ENTRYWISE, ids=lambda loss: getattr(loss, "name", loss)
)
def test_labels_that_a_loss_would_broadcast_are_refused(loss):
    model = dense(x=(2,))
    model.compile("sgd", loss)
    message = r"output.s shape \(None, 2\)\. Received: y of shape \(6"
    for labels in (Y, Y[:, None], X[..., :1], X[..., None, :]):
        with pytest.raises(DataError, match=message):
            check_labels(model, (X, labels))
    check_labels(model, (X, X))


@pytest.mark.one_backend
def test_labels_that_keras_fits_to_the_outputs_are_let_through(two_outputs):
    one = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    one.compile("sgd", "mse")
    check_labels(one, (X, Y))
    check_labels(one, (X, Y[:, None]))
    flat = keras.Sequential([one, keras.layers.Reshape(())])
    flat.compile("sgd", "mse")
    check_labels(flat, (X, Y[:, None]))
    steps = keras.Sequential([keras.Input((None, 1)), keras.layers.Dense(1)])
    steps.compile("sgd", "mse")
    check_labels(steps, (X[..., None], X))
    two = dense(x=(2,))
    for loss in ("sparse_categorical_crossentropy", None, lambda y, p: (y - p) ** 2):
        two.compile("sgd", loss)
        check_labels(two, (X, Y % 2))
        check_labels(two, (X, Y[:, None] % 2))
    two_outputs.compile("sgd", "mse")
    check_labels(two_outputs, (X, {"q": Y, "p": Y[:, None]}))
    two_outputs.compile("sgd", {"p": "mse", "q": SPARSE()})
    check_labels(two_outputs, (X, {"q": X, "p": Y}))
    with pytest.raises(DataError, match=r"Received: y of shape \(6, 2\)"):
        check_labels(two_outputs, (X, {"p": X, "q": Y}))


@pytest.mark.one_backend
def test_labels_of_a_model_with_a_loss_of_its_own_are_its_affair():
    class Own(keras.Model):
        def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
            return keras.ops.mean(y_pred)

    given = keras.Input((2,))
    own = Own(given, keras.layers.Dense(2)(given))
    own.compile("sgd", "mse")
    check_labels(own, (X, Y))


@pytest.mark.one_backend
def test_an_array_whose_header_is_no_sentence_of_python_is_refused(tmp_path):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': ((4, 6), "
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(DataError, match="its header is damaged"):
        load_data(str(tmp_path / "data.npz"))


@pytest.mark.one_backend
def test_token_ids_are_bounded_by_their_file(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_LARGE_BYTES", 2**20)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Embedding(9, 9)])
    path = tmp_path / "ids.npz"
    np.savez_compressed(path, token_ids=np.ones(2**18, "int32"))
    with pytest.raises(DataError, match="it would take 1048704 bytes, but has"):
        token_samples(path, model)
    np.savez_compressed(path, token_ids=np.arange(4000) % 9)
    assert token_samples(path, model)[0].shape == (500, 8)
    np.save(tmp_path / "ids.npy", np.arange(4000) % 9)
    assert token_samples(tmp_path / "ids.npy", model)[0].shape == (500, 8)


@pytest.mark.one_backend
def test_texts_in_a_file_can_be_predicted(tmp_path):
    """Keras refuses NumPy's own strings: "Invalid dtype: str64"."""
    lookup = keras.layers.TextVectorization(8, output_sequence_length=2)
    lookup.adapt(["ab cd"])
    inputs = keras.Input((), dtype="string")
    model = keras.Model(inputs, lookup(inputs))
    words = np.array(["ab", "cd ab", "ü"])
    np.savez(tmp_path / "data.npz", x=words)
    (x,) = load_data(tmp_path / "data.npz").train
    assert x.tolist() == words.tolist()
    np.testing.assert_array_equal(model.predict(x, verbose=0), lookup(words.tolist()))
