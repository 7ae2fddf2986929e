"""Batches from disk are the samples in the file, each once an epoch."""

import keras
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.errors import ConfigError, DataError
from kerasmem.files.data import load_data
from kerasmem.files.data.source import map_arrays, mapping_of
from kerasmem.memory.pipeline import stream
from kerasmem.units import MIB


@pytest.fixture(scope="module")
def train_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "train.npz"
    x = np.arange(100 * 6, dtype="float32").reshape(100, 6)
    np.savez(path, x_train=x, y_train=np.arange(100), x_test=-x[:7], y_test=[0] * 7)
    return path


def epoch(dataset):
    batches = [dataset[index] for index in range(len(dataset))]
    dataset.on_epoch_end()
    return [np.concatenate(parts) for parts in zip(*batches, strict=True)]


@pytest.mark.one_backend
@given(batch_size=st.integers(1, 130), shuffle=st.booleans())
@settings(max_examples=25, derandomize=True, deadline=None)
def test_every_sample_comes_once_an_epoch_with_its_label(
    train_file, batch_size, shuffle
):
    dataset = stream(train_file, batch_size, shuffle=shuffle, seed=1)
    for _ in range(2):
        x, y = epoch(dataset)
        np.testing.assert_array_equal(np.sort(y), np.arange(100))
        np.testing.assert_array_equal(x[:, 0], 6 * y)
    assert len(dataset) == -(-100 // batch_size)


@pytest.mark.one_backend
def test_the_order_changes_between_epochs_and_repeats_with_the_seed(train_file):
    first, again = (stream(train_file, 10, seed=3) for _ in range(2))
    orders = [epoch(first)[1] for _ in range(2)]
    assert not np.array_equal(*orders)
    np.testing.assert_array_equal(epoch(again)[1], orders[0])


@pytest.mark.one_backend
def test_without_shuffling_the_order_is_that_of_the_file(train_file):
    np.testing.assert_array_equal(
        epoch(stream(train_file, 32, shuffle=False))[1], np.arange(100)
    )


@pytest.mark.one_backend
def test_the_test_split_is_streamed_when_asked_for(train_file):
    x, y = epoch(stream(train_file, 4, split="test", shuffle=False))
    assert (x.shape, list(y)) == ((7, 6), [0] * 7)
    assert x[3, 1] == -19


@pytest.mark.one_backend
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float64", "uint8", "bool"])
def test_mapped_arrays_equal_loaded_ones(tmp_path, order, dtype):
    x = np.asarray(np.random.default_rng(0).integers(0, 2, (5, 4, 3)), dtype, order)
    np.savez(tmp_path / "d.npz", x=x, y=np.float32(2.5) * np.ones(5))
    mapped = map_arrays(tmp_path / "d.npz")
    np.testing.assert_array_equal(mapped["x"], x)
    assert mapped["x"].dtype == dtype
    assert mapped["y"][4] == 2.5
    assert not mapped["x"].flags.writeable
    assert mapping_of(mapped["x"][2:]) is mapping_of(mapped["y"])


@pytest.mark.one_backend
def test_several_inputs_and_weights_come_by_name(tmp_path):
    a, b = np.arange(9), np.arange(9) * 2
    np.savez(tmp_path / "d.npz", x_a=a, x_b=b, y=a + b, sample_weight=a / 9)
    x, y, weight = stream(tmp_path / "d.npz", 9)[0]
    np.testing.assert_array_equal(x["a"] + x["b"], y)
    np.testing.assert_array_equal(weight, x["a"] / 9)


@pytest.mark.one_backend
def test_a_memmap_handed_in_is_streamed_too(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(50.0))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert mapping_of(x) is not None
    np.testing.assert_array_equal(np.sort(epoch(stream((x, x), 7))[1]), np.arange(50))
    assert len(stream(tmp_path / "x.npy", 7)) == 8


def test_a_model_trains_from_a_stream_as_from_memory(train_file):
    def weights(**data):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-6), "mse")
        model.fit(**data, shuffle=False, verbose=0)
        return model.get_weights()

    x, y = load_data(train_file).train
    loaded = weights(x=x, y=y, batch_size=25)
    streamed = weights(x=stream(train_file, 25, shuffle=False))
    for one, other in zip(loaded, streamed, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.one_backend
def test_a_file_larger_than_its_share_of_memory_stays_on_disk(tmp_path):
    x = np.lib.format.open_memmap(
        tmp_path / "x.npy", mode="w+", dtype="uint8", shape=(192, MIB)
    )
    x[:] = 7
    x.flush()
    del x
    dataset, most = stream(tmp_path / "x.npy", 4), 0
    before = psutil.Process().memory_info().rss
    for index in range(len(dataset)):
        (batch,) = dataset[index]
        assert batch.min() == batch.max() == 7
        most = max(most, psutil.Process().memory_info().rss - before)
    assert most < 96 * MIB


@pytest.mark.one_backend
def test_a_compressed_file_is_refused_with_the_remedy(tmp_path):
    np.savez_compressed(tmp_path / "d.npz", x=np.zeros(9))
    with pytest.raises(DataError, match="'x' of .* is compressed.*numpy.savez instead"):
        stream(tmp_path / "d.npz")


@pytest.mark.one_backend
def test_what_cannot_be_mapped_is_refused(tmp_path, train_file):
    np.savez(tmp_path / "o.npz", x=np.array([{}], dtype=object))
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    (tmp_path / "empty.npz").write_bytes(b"")
    with pytest.raises(DataError, match="contains Python objects"):
        stream(tmp_path / "o.npz")
    for name in ("bad", "empty"):
        with pytest.raises(DataError, match="cannot be mapped"):
            stream(tmp_path / f"{name}.npz")
    with pytest.raises(DataError, match="no data file"):
        stream(tmp_path / "missing.npz")
    with pytest.raises(DataError, match="Expected arrays with at least one sample"):
        stream(iter([]))
    with pytest.raises(ConfigError, match="from 1. Received: batch_size=0"):
        stream(train_file, 0)
    with pytest.raises(ConfigError, match="one of train, test. Received: split='val'"):
        stream(train_file, split="val")
