"""A teacher is asked once; what it said is kept, and nobody else's is taken for it."""

import os

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax

from kerasmem.compression.distill import Distiller, distill
from kerasmem.compression.distill.cache import (
    AnswerStore,
    Cache,
    Column,
    all_logits,
    clipped,
    largest_logits,
)
from kerasmem.compression.distill.losses import DKD, Features, Logits
from kerasmem.errors import ConfigError, DataError, OutputError
from kerasmem.memory import stream

SAMPLES, FEATURES, CLASSES = 20, 5, 6
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
layers = keras.layers


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype("float32")
    return x, rng.integers(0, CLASSES, SAMPLES)


def classifier(width, activation=None):
    hidden = layers.Dense(width, "tanh", name="hidden")
    body = [keras.Input((FEATURES,)), hidden, layers.Dense(CLASSES, activation)]
    model = keras.Sequential(body)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=activation is None)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


class Reiterated:
    """One batch, again and again: no arrays, and no `PyDataset`."""

    def __init__(self, batch):
        self.batch = batch

    def __iter__(self):
        return iter([self.batch])


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, noise=0.0):
        super().__init__()
        self.x, self.y, self.noise = x, y, noise

    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = slice(5 * index, 5 * index + 5)
        noise = self.noise * np.random.default_rng().normal(size=(5, FEATURES))
        return self.x[rows] + noise.astype("float32"), self.y[rows]


def run(teacher, student, data, cache=None, **options):
    options = {"epochs": 2, "batch_size": 5, "verbose": 0, "seed": 3} | options
    trained = distill(teacher, student, data, cache=cache, **options)
    weights = [np.array(w) for w in trained.get_weights()]
    return weights, trained.history.history


def assert_close(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


@pytest.mark.parametrize(
    ("end", "dtype", "tolerance"),
    [(None, "float32", 1e-6), ("softmax", "float16", 1e-3)],
)
def test_a_student_learns_the_same_from_what_was_kept(
    end, dtype, tolerance, data, tmp_path
):
    teacher, student = classifier(8, end), classifier(4)
    losses = [Logits(), Features(layers="hidden")]
    options = {"losses": losses, "validation_data": data}
    expected, plain = run(teacher, student, data, **options)
    cache = Cache(tmp_path / "kept", dtype=dtype, batch_size=8)
    found, history = run(teacher, student, data, cache, **options)
    assert_close(found, expected, tolerance)
    for name, values in plain.items():
        np.testing.assert_allclose(history[name], values, rtol=0.01, atol=1e-3)


def test_labels_and_sample_weights_come_along(data, tmp_path):
    weighted = (*data, np.linspace(0, 2, SAMPLES))
    teacher, student = classifier(8), classifier(4)
    options = {"losses": DKD()}
    expected, _ = run(teacher, student, weighted, **options)
    cache = Cache(tmp_path, dtype="float32")
    assert_close(run(teacher, student, weighted, cache, **options)[0], expected, 1e-5)


def test_a_teacher_is_asked_once_for_several_students(data, tmp_path, monkeypatch):
    asked = []
    append = AnswerStore.append

    def counting(self, keys, arrays):
        asked.append(len(keys))
        append(self, keys, arrays)

    monkeypatch.setattr(AnswerStore, "append", counting)
    teacher = classifier(8)
    run(teacher, classifier(4), data, Cache(tmp_path, batch_size=8))
    assert asked == [8, 8, 4]
    run(teacher, classifier(3), data, str(tmp_path))
    half = tuple(part[::2] for part in data)
    run(teacher, classifier(3), half, tmp_path)
    assert sum(asked) == SAMPLES


@pytest.mark.one_backend
def test_a_file_is_no_cache(data, tmp_path):
    path = tmp_path / "teacher.keras"
    path.touch()
    with pytest.raises(
        OutputError, match=r"the cache folder.*teacher\.keras': File exists"
    ):
        run(classifier(8), classifier(4), data, cache=path)


def test_batches_are_found_again_in_any_order(data, tmp_path, monkeypatch):
    teacher, student = classifier(8), classifier(4)
    cache = Cache(tmp_path / "kept", dtype="float32", batch_size=8)
    expected, _ = run(teacher, student, Batches(*data))
    assert_close(run(teacher, student, Batches(*data), cache)[0], expected, 1e-6)

    monkeypatch.delattr(AnswerStore, "append")  # nothing is asked for again
    np.savez(tmp_path / "data.npz", x=data[0], y=data[1])
    shuffled = stream(tmp_path / "data.npz", batch_size=4)
    run(teacher, student, shuffled, cache)


def test_what_was_broken_off_goes_on_where_it_stopped(data, tmp_path, monkeypatch):
    teacher, student = classifier(8), classifier(4)
    cache = Cache(tmp_path, batch_size=5)
    append, asked = AnswerStore.append, []

    def breaking(self, keys, arrays):
        if len(asked) == 2:
            self._add("answer_0.bin", b"half a row")
            raise KeyboardInterrupt
        asked.append(len(keys))
        append(self, keys, arrays)

    monkeypatch.setattr(AnswerStore, "append", breaking)
    with pytest.raises(KeyboardInterrupt):
        run(teacher, student, data, cache)

    monkeypatch.setattr(AnswerStore, "append", append)
    first = AnswerStore._opened
    kept = []
    monkeypatch.setattr(
        AnswerStore, "_opened", lambda self: kept.append(first(self)) or kept[-1]
    )
    found, _ = run(teacher, student, data, cache)
    assert len(kept[0]) == SAMPLES  # ten of them before the rest was asked for
    expected, _ = run(teacher, student, data, Cache(tmp_path / "whole", batch_size=5))
    assert_close(found, expected, 0)


@pytest.mark.one_backend
def test_the_cache_of_another_teacher_is_refused(data, tmp_path):
    teacher, student = classifier(8), classifier(4)
    run(teacher, student, data, tmp_path)
    other = keras.models.clone_model(teacher)
    other.compile(loss=LOGITS)
    message = "of another teacher: its config, weights"
    with pytest.raises(DataError, match=message):
        run(other, student, data, tmp_path)
    with pytest.raises(DataError, match=message):
        run(teacher, student, data, tmp_path, losses=["logits", "features"])
    with pytest.raises(DataError, match="of other form"):
        run(teacher, student, data, Cache(tmp_path, dtype="float32"))


@pytest.mark.one_backend
def test_the_cache_of_other_data_is_refused(data, tmp_path):
    x, y = data
    teacher, student = classifier(8), classifier(4)
    run(teacher, student, data, tmp_path)
    message = "is of other data: it has no answers to 20 of 20"
    with pytest.raises(DataError, match=message):
        run(teacher, student, (x + 1, y), tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_augmentation_at_random_is_refused(data, tmp_path):
    teacher, student = classifier(8), classifier(4)
    with pytest.raises((DataError, RuntimeError), match="Random augmentation"):
        run(teacher, student, Batches(*data, noise=0.1), tmp_path)


@pytest.mark.one_backend
def test_what_has_no_samples_to_find_again_is_refused(data, tmp_path):
    teacher, student = classifier(8), classifier(4)
    batches = Reiterated(tuple(part[:4] for part in data))
    with pytest.raises(ConfigError, match=r"arrays or a .*without cache="):
        run(teacher, student, batches, tmp_path)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "Received: top_k=0"),
        ({"batch_size": 2.5}, "Received: batch_size=2.5"),
        ({"dtype": "int8"}, "Received: dtype='int8'"),
        ({"folder": 7}, "Received: folder=7"),
    ],
)
def test_a_wrong_choice_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Cache(**({"folder": "kept"} | options))


@pytest.mark.one_backend
def test_a_damaged_cache_is_refused(data, tmp_path):
    teacher, student = classifier(8), classifier(4)
    (tmp_path / "cache.json").write_text("{")
    with pytest.raises(DataError, match="is not a valid cache"):
        run(teacher, student, data, tmp_path)


def test_the_largest_logits_are_kept_as_they_are_with_the_mass_of_the_others(tmp_path):
    logits = np.random.default_rng(0).normal(size=(7, CLASSES)).astype("float32")
    kept = {
        k: keras.ops.convert_to_tensor(v) for k, v in largest_logits(logits, 3).items()
    }
    found = keras.ops.convert_to_numpy(all_logits(kept, CLASSES))
    order = np.argsort(-logits, axis=-1)
    for row, full, ranks in zip(found, logits, order, strict=True):
        np.testing.assert_allclose(row[ranks[:3]], full[ranks[:3]], rtol=1e-5)
        assert np.ptp(row[ranks[3:]]) < 1e-6
        assert logsumexp(row) == pytest.approx(logsumexp(full), rel=1e-5)
        np.testing.assert_allclose(
            softmax(row)[ranks[:3]], softmax(full)[ranks[:3]], rtol=1e-5
        )


def test_a_student_learns_from_few_logits(data, tmp_path):
    teacher, student = classifier(8, "softmax"), classifier(4)
    expected, _ = run(teacher, student, data)
    found, _ = run(teacher, student, data, Cache(tmp_path, top_k=CLASSES - 1))
    assert_close(found, expected, 1e-3)
    names = {path.name for path in tmp_path.iterdir()}
    assert "answer_0_places.bin" in names


def test_a_teacher_that_nobody_asks_takes_no_room_in_the_step(data, tmp_path):
    model = Distiller(classifier(8), classifier(4))
    model.compile("sgd", LOGITS)
    kept, _ = model.answered(data, None, Cache(tmp_path))
    assert model.non_trainable_variables == []
    model.fit(*kept, verbose=0)
    model.evaluate(*data, verbose=0)


def test_several_teachers_have_a_folder_each(data, tmp_path):
    teachers, student = [classifier(8), classifier(7)], classifier(4)
    expected, _ = run(teachers, student, data)
    cache = Cache(tmp_path, dtype="float32")
    assert_close(run(teachers, student, data, cache)[0], expected, 1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["teacher_0", "teacher_1"]


@pytest.mark.one_backend
@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    batches=st.lists(st.lists(st.binary(min_size=16, max_size=16), max_size=4)),
    cut=st.integers(0, 60),
)
def test_a_store_cut_anywhere_has_whole_rows_or_none(tmp_path_factory, batches, cut):
    folder = tmp_path_factory.mktemp("store")
    column = Column("a.bin", "float16", (3,))
    store = AnswerStore(folder, "teacher", [column])
    for batch in batches:
        keys = [k for k in dict.fromkeys(batch) if k not in store.rows]
        rows = np.array([[k[0], k[1], k[2]] for k in keys], "float16").reshape(-1, 3)
        store.append(keys, [rows])
    for name in ("a.bin", "keys.bin"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: max(len(content) - cut, 0)])
    again = AnswerStore(folder, "teacher", [column])
    assert len(again.rows) <= len(store.rows)
    if again.rows:
        (array,) = again.arrays()
        for key, row in again.rows.items():
            assert store.rows[key] == row
            np.testing.assert_array_equal(array[row], [key[0], key[1], key[2]])


@pytest.mark.one_backend
def test_numbers_too_large_for_half_precision_become_its_largest():
    kept = clipped(np.array([1e6, -1e6, 2.0]), "float16")
    assert kept.tolist() == [65504.0, -65504.0, 2.0]


LINKED = ["a.bin", "keys.bin", "cache.json"]


@pytest.mark.one_backend
@pytest.mark.parametrize("name", LINKED)
def test_a_cache_that_leads_elsewhere_is_refused_and_nothing_there_changes(
    name, tmp_path
):
    mine, folder = tmp_path / "mine", tmp_path / "cache"
    columns = [Column("a.bin", "float16", (3,))]
    AnswerStore(folder, "teacher", columns)
    mine.write_bytes((folder / name).read_bytes() + bytes(10_001))
    before = mine.read_bytes()
    (folder / name).unlink()
    (folder / name).symlink_to(mine)
    with pytest.raises(
        DataError, match=r"not a valid cache.*(regular file|cannot be read|too large)"
    ):
        AnswerStore(folder, "teacher", columns)
    assert mine.read_bytes() == before


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "content", ["[" * 100_000, "[]", "null", "3", '{"complete": 1}']
)
def test_a_cache_that_says_something_else_is_refused(content, tmp_path):
    (tmp_path / "cache.json").write_text(content)
    with pytest.raises(DataError, match=r"not a valid cache|is of another teacher"):
        AnswerStore(tmp_path, "teacher", [Column("a.bin", "float16", (3,))])


@pytest.mark.one_backend
def test_a_cache_of_zeros_without_end_is_not_read_to_it(tmp_path):
    columns = [Column("a.bin", "float16", (3,))]
    AnswerStore(tmp_path, "teacher", columns)
    for name in ("a.bin", "keys.bin"):
        os.truncate(tmp_path / name, 1 << 40)
    with pytest.raises(DataError, match="duplicate key"):
        AnswerStore(tmp_path, "teacher", columns)
