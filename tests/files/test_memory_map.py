"""Weights stay in the file until a layer needs them, and are the same."""

import subprocess
import sys
import textwrap
import threading
from copy import copy as copied
from copy import deepcopy

import h5py
import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem import backends
from kerasmem.backends.lazy import lazy_variables
from kerasmem.backends.mapped import MappedArray
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import KerasMemWarning, ModelFileError, OutputError
from kerasmem.files.skeleton import mapped_arrays
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L, chain

SOME = ["conv2d", "recurrent", "attention", "shared", "nested", "subclassed"]
X = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")
ON_JAX = (
    keras.backend.backend() == "jax"
)  # XLA elsewhere takes longer than all the rest


def waiting(variables):
    """The names of those variables that have no value yet."""
    return [v.path for v in variables if type(v) is not keras.Variable]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.keras"


@pytest.fixture
def lazy(backend):
    """Whether a variable has memory of its own, which it gets when it is used."""
    return backend != "torch"


def two_layers():
    model = chain((6,), L.Dense(50, activation="relu"), L.Dense(2))
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=ON_JAX)
    return model


def mapped(model, path):
    km.save_model(model, path, coding="stored")
    return km.load_model(path, memory_map=True)


def test_a_copy_of_a_mapped_variable_leaves_the_model_as_it_is(path):
    model = two_layers()
    loaded = mapped(model, path)
    x = np.ones((3, 6), "float32")
    for make in (copied, deepcopy):
        other = make(loaded.layers[-1].kernel)
        np.testing.assert_array_equal(
            to_numpy(other), to_numpy(model.layers[-1].kernel)
        )
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))


@pytest.mark.parametrize("name", SOME)
def test_a_mapped_model_computes_what_stock_keras_makes_of_the_file(name, path):
    model, inputs = KINDS[name].make(), KINDS[name].inputs()
    loaded = mapped(model, path)
    stock = keras.models.load_model(path)
    expected = to_numpy(stock(inputs, training=False))
    # Not to the bit: torch keeps what an initializer made by columns so, and sums it
    # in another order than rows.
    found = to_numpy(loaded(inputs, training=False))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_variable_gets_its_value_when_its_layer_is_used(path, lazy):
    loaded = mapped(two_layers(), path)
    everything = waiting(loaded.variables)
    assert len(everything) == (4 if lazy else 0)
    loaded.summary(print_fn=lambda _: None)
    assert loaded.count_params() == 6 * 50 + 50 + 50 * 2 + 2
    assert [tuple(w.shape) for w in loaded.weights] == [(6, 50), (50,), (50, 2), (2,)]
    assert {w.dtype for w in loaded.trainable_variables} == {"float32"}
    assert all(isinstance(w, keras.Variable) for w in loaded.weights)
    loaded.layers[-1].trainable = False
    assert waiting(loaded.variables) == everything
    loaded.layers[1](X)
    assert waiting(loaded.variables) == everything[2:]


def test_training_goes_on_as_with_a_model_that_was_read(path):
    loaded = mapped(two_layers(), path)
    before = path.read_bytes()
    stock = keras.models.load_model(path)
    found, expected = (
        model.fit(X, X[:, :2], epochs=3, shuffle=False, verbose=0).history["loss"]
        for model in (loaded, stock)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found[-1] < found[0]
    assert waiting(loaded.variables) == []
    assert path.read_bytes() == before


def test_a_mapped_model_is_saved_over_its_own_file_copied_and_assigned(path):
    model = two_layers()
    loaded = mapped(model, path)
    loaded.layers[1].bias.assign(np.ones(50))
    km.save_model(loaded, path)
    for copy in (km.load_model(path), keras.models.clone_model(loaded)):
        assert [w.shape for w in copy.get_weights()] == [
            w.shape for w in model.get_weights()
        ]
    kernel, bias, *_ = km.load_model(path).get_weights()
    np.testing.assert_array_equal(kernel, model.get_weights()[0])
    np.testing.assert_array_equal(bias, np.ones(50))


def test_keras_itself_saves_a_mapped_model_over_its_own_file(path):
    """It would empty the file first, and the process would end with a bus error."""
    model = chain((64,), L.Dense(300), L.Dense(2))
    loaded = mapped(model, path)
    with pytest.raises(OutputError, match="weights of the model lie in"):
        loaded.save(path, overwrite=False)
    for _ in range(2):
        loaded.save(path)
        pairs = zip(
            keras.models.load_model(path).get_weights(),
            model.get_weights(),
            strict=True,
        )
        for a, b in pairs:
            np.testing.assert_array_equal(a, b)


def test_codes_are_mapped_too(path, lazy):
    small = km.compress(
        chain((5,), L.Embedding(11, 8), L.LSTM(6), L.Dense(40), dtype="int32"),
        km.Quantize("int4", granularity="group", group_size=4, symmetric=False),
    ).model
    loaded = mapped(small, path)
    assert len(quantized_variables(loaded)) == 4
    assert len(waiting(loaded.weights)) == (len(small.weights) if lazy else 0)
    words = np.array([[1, 4, 0, 10, 2]], "int32")
    found, expected = to_numpy(loaded(words)), to_numpy(small(words))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert waiting(loaded.weights) == []


def test_half_precision_and_statistics_are_mapped(path):
    scaled = L.Normalization()
    scaled.adapt(X)
    model = chain((6,), scaled, L.Dense(7, dtype="bfloat16"), L.BatchNormalization())
    loaded = mapped(model, path)
    assert [w.dtype for w in loaded.weights] == [w.dtype for w in model.weights]
    assert keras.ops.all(loaded(X) == model(X))


def test_a_file_that_keras_wrote_is_mapped_but_for_what_the_optimizer_learned(
    path, lazy
):
    model = two_layers()
    model.fit(X, X[:, :2], verbose=0)
    model.save(path)
    with pytest.warns(KerasMemWarning, match="is reset"):
        loaded = km.load_model(path, memory_map=True)
    assert len(waiting(loaded.variables)) == (4 if lazy else 0)
    assert int(loaded.optimizer.iterations) == 0
    np.testing.assert_allclose(to_numpy(loaded(X)), to_numpy(model(X)), atol=1e-6)
    assert not km.load_model(path, compile=False, memory_map=True).compiled


def test_the_first_to_ask_may_be_a_trace(path, backend):
    model = two_layers()
    loaded = mapped(model, path)
    if backend == "tensorflow":
        import tensorflow as tf

        traced = tf.function(loaded, jit_compile=True)
    elif backend == "jax":
        import jax

        traced = jax.jit(loaded)
    else:
        traced = loaded
    expected = to_numpy(model(X))
    np.testing.assert_allclose(to_numpy(traced(X)), expected, atol=1e-6)
    np.testing.assert_allclose(to_numpy(loaded(X)), expected, atol=1e-6)
    assert waiting(loaded.variables) == []


def test_threads_that_ask_at_once_get_one_value(path):
    loaded = mapped(two_layers(), path)
    kernel, found = loaded.layers[1].kernel, []
    threads = [
        threading.Thread(target=lambda: found.append(id(kernel.value)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {id(kernel.value)}


@pytest.mark.one_backend
def test_arrays_lie_where_processors_like_them_and_zeros_take_nothing(path):
    model = chain((30,), L.Dense(40), L.Dense(1000, kernel_initializer="zeros"))
    km.save_model(model, path, coding="stored")
    assert path.stat().st_size < 4 * 30 * 40 + 30_000
    arrays = [*mapped_arrays(path).values()]
    full = [array for array in arrays if array.any()]
    assert [array.shape for array in full] == [(30, 40)]
    assert full[0].ctypes.data % 64 == 0
    assert not h5py.is_hdf5(path), "it would be opened as another kind of file"
    np.testing.assert_array_equal(full[0], model.get_weights()[0])
    for a, b in zip(
        keras.models.load_model(path).get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_entries_that_lie_at_odd_places_are_copied_to_better_ones(path):
    """As in a file of Keras's own, where members begin wherever the last one ended."""
    model = two_layers()
    for length in range(4):
        model.name = "m" * (length + 1)
        model.save(path)
        loaded = km.load_model(path, memory_map=True, compile=False)
        np.testing.assert_allclose(to_numpy(loaded(X)), to_numpy(model(X)), atol=1e-6)


@pytest.mark.one_backend
def test_what_is_written_to_an_array_stays_out_of_the_file(path):
    km.save_model(two_layers(), path, coding="stored")
    before = path.read_bytes()
    for array in mapped_arrays(path).values():
        array[...] = 1
    assert path.read_bytes() == before


@pytest.mark.one_backend
@pytest.mark.parametrize("coding", ["deflate", "entropy"])
def test_compressed_weights_are_one_clear_line(coding, path):
    km.save_model(two_layers(), path, coding=coding)
    with pytest.raises(ModelFileError, match="are compressed.*coding='stored'"):
        km.load_model(path, memory_map=True)


@pytest.mark.one_backend
def test_another_format_is_one_clear_line(tmp_path):
    two_layers().save(tmp_path / "m.h5")
    with pytest.raises(
        ModelFileError,
        match=r"Expected a \.keras file of Keras 3 for memory_map=True.*Next",
    ):
        km.load_model(tmp_path / "m.h5", memory_map=True)


@pytest.mark.one_backend
def test_a_config_that_was_damaged_is_told_and_weights_are_not_read(path):
    km.save_model(two_layers(), path, coding="stored")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"date_saved"', b'"date_eaten"'))
    with pytest.raises(ModelFileError, match=r"checksum of metadata\.json"):
        km.load_model(path, memory_map=True)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match="no .keras file"):
        km.load_model(path, memory_map=True)


@pytest.mark.one_backend
def test_weights_that_lie_nowhere_are_one_clear_line(path):
    km.save_model(two_layers(), path, coding="stored")
    whole = path.read_bytes()
    start = whole.index(b"\x89HDF\r\n")
    told = []
    for place in range(start, start + 4000, 97):
        path.write_bytes(whole[:place] + b"\xff\xff\xff\xff" + whole[place + 4 :])
        try:
            mapped_arrays(path)
        except ModelFileError as error:
            told.append(str(error))
    assert len(told) > 5
    assert all("damaged" in text or "compressed" in text for text in told)


def test_after_an_error_variables_have_values_at_once_again():
    with (
        pytest.raises(RuntimeError),
        lazy_variables(backends.current().lazy_values()),
    ):
        raise RuntimeError
    layer = L.Dense(2)
    layer.build((None, 3))
    assert type(layer.kernel) is keras.Variable
    assert not isinstance(layer.get_weights()[0], MappedArray)


def test_a_variable_that_no_file_has_is_initialized():
    with lazy_variables(backends.current().lazy_values()):
        layer = L.Dense(3, bias_initializer="ones")
        layer.build((None, 2))
    np.testing.assert_array_equal(to_numpy(layer.bias), np.ones(3))
    kernel = to_numpy(layer.kernel)
    assert np.ptp(kernel) > 0
    np.testing.assert_array_equal(kernel, to_numpy(layer.kernel))


def test_what_another_thread_makes_meanwhile_has_its_value():
    made = []

    def make():
        made.append(L.Dense(3))
        made[0].build((None, 2))

    with lazy_variables(backends.current().lazy_values()):
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
    assert type(made[0].kernel) is keras.Variable
    assert to_numpy(made[0].kernel).shape == (2, 3)


OPENED = """
    import sys, time
    import keras, numpy as np, psutil
    import kerasmem as km

    def resident():
        return psutil.Process().memory_info().rss

    km.load_model(sys.argv[1], memory_map=True)(np.ones((1, 64), "float32"))
    before = resident()
    model = km.load_model(sys.argv[2], memory_map=True)
    opened = resident()
    # JAX computes in the background, and frees temporary arrays afterwards.
    keras.ops.convert_to_numpy(model.layers[1](np.ones((1, 2048), "float32")))
    values = []
    for _ in range(20):
        time.sleep(0.05)
        values.append(resident())
    print(opened - before, min(values) - before)
"""


def test_opening_takes_next_to_no_memory_and_a_layer_takes_its_own(tmp_path):
    """In a process that has made no larger model, whose memory it could take again."""
    for name, width in (("small", 64), ("large", 2048)):
        model = chain((width,), *(L.Dense(width) for _ in range(2)))
        km.save_model(model, tmp_path / f"{name}.keras", coding="stored")
    layer = 4 * 2048 * 2048
    assert (tmp_path / "large.keras").stat().st_size > 2 * layer
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OPENED), "small.keras", "large.keras"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    opened, one = map(int, done.stdout.split())
    assert opened < layer // 4
    assert layer // 2 < one < 1.5 * layer
