"""What data holds in memory: by arithmetic, and as measured."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from kerasmem.errors import ConfigError, DataError
from kerasmem.memory.pipeline import inspect_data, stream
from kerasmem.records import DataMemory
from kerasmem.units import MIB

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def sizes(data, **arguments):
    figures = inspect_data(data, batches=0, **arguments)
    return {stage.name: stage.nbytes for stage in figures.stages}


def advice(data):
    figures = inspect_data(data, batches=0)
    return {stage.name: stage.advice for stage in figures.stages}


def test_arrays_count_in_full_and_once_more_where_fit_copies_them():
    data = (np.zeros((100, 8), "float32"), np.zeros(100, "int64"))
    expected = {"x": 3200, "y": 800}
    if ON_TENSORFLOW:
        expected["copies made by TensorFlow"] = 8000
    assert sizes(data) == expected
    assert inspect_data(data, 10, batches=0).batch_bytes == 400


def test_a_sparse_matrix_counts_what_it_stores():
    x = scipy.sparse.random(60, 40, 0.1, format="csr", dtype="float32", random_state=0)
    figures = inspect_data((x, np.zeros(60, "float32")), batch_size=6, batches=2)
    stored = x.nnz * (4 + x.indices.itemsize) + 61 * x.indptr.itemsize
    assert figures.stages[0].nbytes == stored
    assert figures.batch_bytes == (stored + 60 * 4) // 10
    assert figures.measured_batches == 2


def test_doubles_are_cast_to_what_keras_trains_in():
    data = np.zeros((1024, 8))
    assert sizes(data)["copy in float32"] == 32 * 1024
    assert advice(data)["x"] == (
        "Keras trains in float32. Casting float64 beforehand saves 32.0 KiB."
    )
    assert advice(data.astype("float32"))["x"] is None
    assert "copy in float32" not in sizes(data.astype("float32"))


@pytest.mark.one_backend
def test_every_stage_of_a_dataset_is_counted_by_its_elements():
    x, y = np.zeros((1000, 28, 28), "float32"), np.zeros(1000, "int64")
    one = 28 * 28 * 4 + 8
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.cache().shuffle(300).map(lambda a, b: (a, b), num_parallel_calls=3)
    data = data.batch(50).prefetch(4)
    assert sizes(data) == {
        "tensors from arrays": 1000 * one,
        "cache in memory": 1000 * one,
        "shuffle buffer": 300 * one,
        "3 parallel calls": 3 * one,
        "batch": 50 * one,
        "prefetch of 4": 4 * 50 * one,
    }
    assert inspect_data(data, batches=0).batch_bytes == 50 * one


@pytest.mark.one_backend
def test_a_shuffle_buffer_is_never_larger_than_what_goes_in():
    data = tf.data.Dataset.from_tensor_slices(np.zeros((10, 4), "float32"))
    assert sizes(data.shuffle(10_000))["shuffle buffer"] == 160


@pytest.mark.one_backend
def test_what_grows_by_itself_gets_advice(tmp_path):
    data = tf.data.Dataset.from_tensor_slices(np.zeros((10, 4), "float32"))
    tuned = advice(data.prefetch(tf.data.AUTOTUNE))
    assert (
        tuned["prefetch, tuned by TensorFlow"]
        == "May grow. prefetch(2) limits the buffer."
    )
    in_file = str(tmp_path / "cache")
    assert sizes(data.cache(in_file))[f"cache in the file {in_file}"] == 0


@pytest.mark.one_backend
def test_shapes_that_nobody_knows_are_unknown_and_not_zero():
    data = tf.data.Dataset.from_generator(
        lambda: iter([[1.0], [1.0, 2.0]]),
        output_signature=tf.TensorSpec([None], tf.float32),
    )
    assert sizes(data.shuffle(5))["shuffle buffer"] is None


class Batches(keras.utils.PyDataset):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.images = np.ones((64, 10), "float32")

    def __len__(self):
        return 8

    def __getitem__(self, index):
        part = self.images[8 * index : 8 * index + 8]
        return part, part[:, 0]


def test_a_py_dataset_is_its_arrays_and_its_queue():
    batch = 8 * 11 * 4
    assert sizes(Batches(workers=1, max_queue_size=10)) == {
        "images": 64 * 10 * 4,
        "queue of 10 batches": 10 * batch,
    }
    processes = Batches(workers=3, use_multiprocessing=True, max_queue_size=2)
    assert sizes(processes)["3 worker processes"] == 3 * (64 * 10 * 4 + batch)


@pytest.mark.one_backend
def test_a_stream_holds_its_order_and_its_queue(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((640, 4), "float32"))
    assert sizes(stream(tmp_path / "x.npy", 64)) == {
        "order of the samples": 640 * 8,
        "pages of the files, at most": 640 * 16,
        "queue of 10 batches": 10240,
    }
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert sizes(mapped)["x, on disk"] == 0


@pytest.mark.one_backend
def test_a_stream_of_arrays_in_memory_says_so():
    x = np.zeros((MIB, 1), "float32")
    assert sizes(stream(x, 64))["arrays in memory"] == 4 * MIB
    assert sizes(stream(x, 64))["pages of the files, at most"] == 0


def numbers():
    held = np.zeros((50, 4), "float32")
    while True:
        yield held[:2], held[:2, 0]


def test_a_generator_is_told_by_the_function_that_makes_it():
    figures = inspect_data(numbers, batches=3)
    held, rest = figures.stages
    assert (held.name, held.nbytes, rest.nbytes) == ("held", 800, None)
    assert figures.batch_bytes == 2 * 5 * 4
    assert figures.measured_batches == 3
    assert figures.measured_bytes is not None


def test_a_generator_that_has_begun_shows_its_arrays():
    began = numbers()
    next(began)
    assert sizes(began)["held"] == 800


@pytest.mark.one_backend
def test_a_path_stands_for_the_samples_in_it(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.zeros((6, 4), "uint8"), y=np.zeros(6, "int32"))
    found = sizes(tmp_path / "d.npz")
    assert (found["x"], found["y"]) == (24, 24)


@pytest.mark.one_backend
def test_datasets_inside_of_datasets_are_unknown():
    inner = tf.data.Dataset.from_tensor_slices(np.zeros((4, 2), "float32"))
    data = tf.data.Dataset.range(9).interleave(lambda number: inner, cycle_length=3)
    assert sizes(data.batch(2)) == {"3 datasets read in turn": None, "batch": 16}
    made = tf.data.Dataset.from_generator(
        numbers,
        output_signature=(tf.TensorSpec((2, 4)), tf.TensorSpec((2,))),
    )
    assert sizes(made)["datasets or batches from a function"] is None


@pytest.mark.one_backend
def test_texts_have_no_known_size():
    data = tf.data.Dataset.from_tensor_slices(["a", "bc"])
    assert sizes(data.shuffle(2))["shuffle buffer"] is None


if keras.backend.backend() == "torch":

    def test_a_loader_is_its_tensors_its_queue_and_its_processes():
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        data = TensorDataset(torch.zeros(64, 4), torch.zeros(64))
        assert sizes(DataLoader(data, batch_size=8)) == {
            "tensors, 2 arrays": 64 * 20,
            "one batch in transit": 160,
        }


@pytest.mark.one_backend
def test_the_table_has_every_stage_and_what_to_bound():
    data = tf.data.Dataset.from_tensor_slices(np.zeros((1000, 512), "float32"))
    figures = inspect_data(data.shuffle(600).batch(10).prefetch(2), batches=0)
    assert (
        figures.table()
        == """\
host memory of the data, estimated:
  tensors from arrays         1.95 MiB
  shuffle buffer              1.17 MiB
  batch                       20.0 KiB
  prefetch of 2               40.0 KiB
  total of the known sizes    3.18 MiB
  one batch                   20.0 KiB
advice:
  tensors from arrays: A copy of the arrays. km.memory.stream reads arrays from disk \
instead.
  shuffle buffer: Holds 600 elements of 2.00 KiB. Shuffle before operations that \
enlarge elements (decode, batch), or use a smaller buffer."""
    )


@pytest.mark.one_backend
def test_numbers_that_are_no_arrays_are_refused():
    with pytest.raises(
        DataError,
        match=r"Received: int 1\. Next: convert a list of numbers with numpy.asarray",
    ):
        inspect_data([1, 2, 3])


@pytest.mark.one_backend
def test_what_can_be_read_once_is_not_read():
    batches = iter([(np.zeros((2, 2)), np.zeros(2))])
    figures = inspect_data(batches)
    assert (figures.measured_bytes, figures.batch_bytes) == (None, None)
    assert next(batches)[0].shape == (2, 2)


MEASURE = """
import sys, numpy, tensorflow as tf
from kerasmem.memory.pipeline import inspect_data
if sys.argv[1] == "cache":
    # 96 elements of a megabyte each, made while they are read, all kept.
    one = lambda n: tf.random.normal([2**18])
    data = tf.data.Dataset.range(96).map(one).cache().batch(4)
else:
    data = numpy.ones((8192, 1024), sys.argv[1])
figures = inspect_data(data, 64, batches=24)
print([stage.nbytes for stage in figures.stages], figures.measured_bytes)
"""


@pytest.mark.parametrize(
    "data", ["float64", pytest.param("cache", marks=pytest.mark.one_backend)]
)
def test_what_is_estimated_is_what_is_measured(data):
    # In a process of its own: in this one, what other tests have freed is used again.
    finished = subprocess.run(
        [sys.executable, "-c", MEASURE, data],
        capture_output=True,
        text=True,
        check=True,
    )
    sizes, measured = finished.stdout.splitlines()[-1].rsplit(" ", 1)
    # Within 40 MiB: where TensorFlow only feeds the data, its start counts too.
    first, *rest = json.loads(sizes)
    expected = first if data == "cache" else sum(rest)
    assert int(measured) == pytest.approx(expected, abs=40 * MIB)


@pytest.mark.one_backend
def test_the_figures_survive_json():
    figures = inspect_data(np.zeros((9, 3)), batches=0)
    assert DataMemory.from_json(figures.to_json()) == figures


@pytest.mark.one_backend
def test_figures_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="Received: batch_size=0"):
        inspect_data(np.zeros(3), 0)
    with pytest.raises(ConfigError, match=r"Received: batch_size=2\.5"):
        inspect_data(np.zeros(3), 2.5)
