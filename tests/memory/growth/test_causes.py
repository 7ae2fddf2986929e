"""Each usual cause of growth is provoked, and named."""

import gc

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem import backends

X, Y = np.ones((32, 4), "float32"), np.ones((32, 8), "float32")


def small_model(**options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    model.compile("sgd", "mse", **options)
    return model


def kinds(scope):
    return {finding.kind for finding in scope.findings}


def words(scope):
    return " ".join(finding.text for finding in scope.findings)


def test_predict_in_a_loop_leaves_nothing():
    model = small_model()
    model.predict(X, verbose=0)
    with km.memory.scope() as scope:
        for _ in range(10):
            model.predict(X, verbose=0)
    # JAX puts other arrays of the same bytes in place of the variables' values.
    assert sum(one.array_bytes for one in scope.stayed) == 0
    assert (scope.traces, scope.findings) == ({}, [])


@pytest.mark.one_backend
def test_models_and_arrays_of_one_name_are_counted_apart():
    trials = []
    with km.memory.scope() as scope:
        for _ in range(4):
            inner = keras.Sequential([keras.Input((16,)), keras.layers.Dense(512)])
            model = keras.Sequential([inner, keras.layers.Dense(8)])
            model.compile("adam", "mse")
            model.optimizer.build(model.trainable_variables)
            trials.append((model, np.zeros(10_000), np.zeros(50_000)))
        del inner, model
    (finding,) = [f for f in scope.findings if f.kind == "models"]
    weights = 4 * 4 * (16 * 512 + 512 + 512 * 8 + 8)
    others = 4 * 8 * 60_000 + 2 * weights
    expected = f"4 models stayed with {weights / 1024:.0f} KiB of weights and "
    expected += f"{others / 1024**2:.2f} MiB of other arrays: trials[...][...]"
    assert expected in finding.text
    assert len(trials) == 4


@pytest.mark.one_backend
def test_arrays_of_variables_in_a_callback_are_counted_once():
    class Keeps(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.kept = []

        def on_epoch_end(self, epoch, logs=None):
            self.kept.append(np.zeros(1000))
            self.kept.append(keras.Variable(np.zeros(1000), dtype="float32"))

    keeps = Keeps()
    with km.memory.scope() as scope:
        small_model().fit(X, Y, epochs=4, verbose=0, callbacks=[keeps])
    (finding,) = [f for f in scope.findings if f.kind == "arrays in a callback"]
    assert "A callback keeps 4 arrays" in finding.text


def test_predict_on_many_shapes_is_traced_for_each_on_jax_alone(backend):
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    with km.memory.scope() as scope:
        for length in range(1, 8):
            model.predict_on_batch(np.zeros((1, length, 4), "float32"))
    assert kinds(scope) == ({"retracing"} if backend == "jax" else set())


@pytest.mark.one_backend
@pytest.mark.parametrize("what", ["shape", "number"])
def test_a_function_that_is_traced_for_every_shape_or_number_is_told(what):
    import tensorflow as tf

    @tf.function
    def scaled(x, factor):
        return x * factor

    with km.memory.scope() as scope:
        for n in range(1, 7):
            by_shape = what == "shape"
            scaled(tf.ones(n if by_shape else 2), 2 if by_shape else n)
    assert kinds(scope) == {"retracing"}
    assert "scaled() was traced 6 more times" in words(scope)


@pytest.mark.one_backend
def test_one_trace_of_each_of_many_functions_is_no_retracing():
    import tensorflow as tf

    kept = []
    with km.memory.scope() as scope:
        for n in range(6):
            kept.append(tf.function(lambda x, n=n: x + n))
            kept[-1](tf.ones(2))
    assert sum(scope.traces.values()) == 6
    assert "retracing" not in kinds(scope)


@pytest.mark.one_backend
def test_free_pages_of_the_c_library_are_told_and_given_back():
    km.memory.scope().free()
    with km.memory.scope() as scope:
        # Below the size from which the C library maps an array by itself; the last one
        # lies above the others and keeps them from being given back.
        arrays = [np.ones(8000) for _ in range(2000)]
        last = arrays.pop()
        arrays.clear()
    # glibc raises that size to the largest block that was ever given back.
    assert kinds(scope) == {"free heap"}
    free_bytes = 1999 * 8000 * 8
    assert scope.free_heap_bytes == pytest.approx(free_bytes, rel=0.1)
    assert scope.free().host_bytes == pytest.approx(free_bytes, rel=0.1)
    scope.update()
    assert scope.findings == []
    assert last.size


def test_arrays_in_the_history_are_told():
    class Writes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["outputs"] = np.zeros(1000)

    with km.memory.scope() as scope:
        history = small_model().fit(X, Y, epochs=4, verbose=0, callbacks=[Writes()])
    assert "arrays in a callback" in kinds(scope)
    assert "history.history['outputs'][...]" in words(scope)
    assert len(history.history["outputs"]) == 4


def test_the_best_weights_of_early_stopping_are_no_finding():
    with km.memory.scope() as scope:
        stopping = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
        small_model().fit(X, Y, epochs=3, verbose=0, callbacks=[stopping])
    assert scope.findings == []
    assert stopping.best_weights


class Batches(keras.utils.PyDataset):
    """Without end."""

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        return X, Y


def test_workers_of_a_training_that_was_broken_off_are_told():
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError(batch)

    with km.memory.scope() as scope:
        model = small_model()
        try:
            model.fit(Batches(workers=2), verbose=0, callbacks=[Stops()])
        except KeyError as error:
            kept = error
    assert "workers" in kinds(scope)
    del kept


@pytest.mark.one_backend
def test_graphs_of_models_that_are_gone_are_told_and_freed():
    kept = small_model()
    kept.fit(X, Y, verbose=0)
    with km.memory.scope() as scope:
        for _ in range(3):
            small_model().fit(X, Y, verbose=0)
    assert kinds(scope) == {"graphs"}
    # Of a model's training its weights and the numbers of sgd and the metric.
    assert sum(scope.graphs) >= 3 * 4 * (4 * 8 + 8)
    scope.free()
    scope.update()
    assert (scope.graphs, scope.findings) == ([], [])
    kept.fit(X, Y, verbose=0)


@pytest.mark.one_backend
def test_a_custom_gradient_is_the_same_after_its_graph_was_released():
    import tensorflow as tf

    @tf.custom_gradient
    def twice(x):
        return 2 * x, lambda upstream: 7 * upstream

    called = tf.function(twice)
    x = tf.Variable(1.0)

    def gradient():
        with tf.GradientTape() as tape:
            y = called(x)
        return float(tape.gradient(y, x))

    called(x)
    backends.current().free_caches()
    gc.collect()
    assert gradient() == 7.0
    backends.current().free_caches()
    gc.collect()
    assert gradient() == 7.0
