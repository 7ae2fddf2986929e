"""Memory that grows over many trainings: known reports, and what a scope costs.

    KERAS_BACKEND=torch python -m tests.benchmarks.bench_growth [reports] [models]
        [cost]

Each case runs in a process of its own. `reports`: loops written from the descriptions
of the threads; growth of resident memory a round after the first ones, of what the C
library's heap has handed out of it (its free pages are used again), and what a scope
finds. `models`: 50 models built, trained for a step and dropped: as they are, with
`scope.free()` after each, and isolated. `cost`: CPU seconds of a training in a scope.
"""

import gc
import sys
import time

import keras
import numpy as np

import kerasmem as km
from kerasmem.backends.heap import c_heap
from kerasmem.processes.host import resident_bytes

ROUNDS, WARM_UP, MIB = 12, 4, 2**20
FLAT_KIB = 64
_MOST_SECONDS = 300
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1000, 32)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
IMAGES = RNG.normal(size=(64, 16, 16, 3)).astype("float32")
LABELS = RNG.integers(0, 4, 64)
SERIES = RNG.normal(size=(32, 10, 3)).astype("float32")
CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense(units=256):
    """Return a compiled model of three layers."""
    hidden = [keras.layers.Dense(units, "relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((32,)), *hidden, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def fit_and_clear(state):
    """keras#21090: a model per round, fitted, then clear_session and gc."""
    del state
    dense(1000).fit(X, Y, batch_size=250, verbose=0)
    keras.utils.clear_session()
    gc.collect()


def search_of_graphs(state):
    """keras#19058: convolutional models of several depths, trained and dropped."""
    del state
    for depth in (1, 2, 3):
        inputs = x = keras.Input((16, 16, 3))
        for _ in range(depth):
            x = keras.layers.Conv2D(8, 3, activation="relu", padding="same")(x)
        x = keras.layers.Flatten()(x)
        model = keras.Model(inputs, keras.layers.Dense(4)(x))
        model.compile("adam", CLASSES)
        model.fit(IMAGES, LABELS, verbose=0)


def small_gpt(state):
    """keras#21035: a decoder block with causal attention, fitted again and again."""
    if not state:
        tokens = keras.Input((64,), dtype="int32")
        x = keras.layers.Embedding(500, 32)(tokens)
        a = keras.layers.MultiHeadAttention(2, 16)(x, x, use_causal_mask=True)
        x = keras.layers.LayerNormalization()(x + a)
        model = keras.Model(tokens, keras.layers.Dense(500)(x))
        model.compile("adam", CLASSES)
        state.append(model)
    ids = RNG.integers(0, 500, (64, 64))
    state[0].fit(ids, ids, batch_size=16, verbose=0)


def predict_in_a_loop(state):
    """keras#13118: predict on new arrays, many times."""
    if not state:
        state.append(dense())
    for _ in range(10):
        state[0].predict(RNG.normal(size=(200, 32)), verbose=0)


def predict_one_sample(state):
    """tensorflow#44711: predict on one sample, many times."""
    if not state:
        state.append(dense())
    for _ in range(10):
        state[0].predict(X[:1], verbose=0)


def predict_on_many_shapes(state):
    """many lengths: a program for each on TensorFlow and JAX."""
    if not state:
        inputs = keras.Input((None, 4))
        outputs = keras.layers.Conv1D(8, 3, padding="same")(inputs)
        state.append(keras.Model(inputs, outputs))
    length = 4 + len(state)
    state[0].predict_on_batch(np.zeros((1, length, 4), "float32"))
    state.append(length)


def models_that_are_dropped(state):
    """keras#20245: a model per round, fitted and dropped."""
    del state
    dense().fit(X, Y, batch_size=250, verbose=0)


def tuner_trials(state):
    """keras-tuner#873: LSTM models of several depths, with validation, dropped."""
    depth = len(state) % 3 + 1
    state.append(depth)
    model = keras.Sequential([keras.Input((10, 3))])
    for index in range(depth):
        model.add(keras.layers.LSTM(8, return_sequences=index < depth - 1))
    model.add(keras.layers.Dense(1))
    model.compile("adam", "mse")
    model.fit(SERIES, Y[:32], validation_split=0.25, epochs=2, verbose=0)


def models_that_are_kept(state):
    """the same with a list: every trial keeps its model."""
    model = dense()
    model.fit(X, Y, batch_size=250, verbose=0)
    state.append(model)


REPORTS = (
    fit_and_clear,
    search_of_graphs,
    small_gpt,
    predict_in_a_loop,
    predict_one_sample,
    predict_on_many_shapes,
    models_that_are_dropped,
    tuner_trials,
    models_that_are_kept,
)


def grown(case, is_freed):
    """Return KiB a round, resident and used, and the kinds of what a scope finds.

    Args:
        case: one of `REPORTS`.
        is_freed: whether each round ends with `free()`.
    """
    state = []
    for _ in range(WARM_UP):
        case(state)
    with km.memory.scope(case.__name__) as scope:
        readings = []
        for _ in range(ROUNDS):
            case(state)
            if is_freed:
                scope.free()
            gc.collect()
            heap = c_heap()
            readings.append((resident_bytes(), heap.used_bytes if heap else 0))
    resident, used = np.polyfit(range(ROUNDS), readings, 1)[0] / 1024
    return resident, used, sorted({finding.kind for finding in scope.findings})


def many_models(how, count=50):
    """Return MiB that 50 trained and dropped models left, and seconds a model."""

    def trial(_):
        dense(512).fit(X[:32], Y[:32], verbose=0)

    trial(0)
    gc.collect()
    before, began = resident_bytes(), time.perf_counter()
    scope = km.memory.scope("trials")
    for number in range(count):
        if how == "isolated":
            km.memory.isolated(trial, number, time_limit=_MOST_SECONDS)
        else:
            trial(number)
        if how == "free":
            scope.free()
    gc.collect()
    seconds = (time.perf_counter() - began) / count
    return (resident_bytes() - before) / MIB, seconds


def cost(repeats=5):
    """Return CPU seconds of a training without and in a scope, medians, and of a look.

    Args:
        repeats: times of each, interleaved.
    """
    model = dense(1000)
    model.fit(X, Y, verbose=0)
    seconds = {"plain": [], "scope": [], "looks": []}
    for _ in range(repeats):
        for how in seconds:
            began = time.process_time()
            if how == "plain":
                model.fit(X, Y, epochs=10, verbose=0)
            elif how == "scope":
                with km.memory.scope():
                    model.fit(X, Y, epochs=10, verbose=0)
            else:
                with km.memory.scope():
                    pass
            seconds[how].append(time.process_time() - began)
    return {how: float(np.median(values)) for how, values in seconds.items()}


def print_reports(backend):
    """Print a line for each report, and one with `free()` where it grows."""
    for case in REPORTS:
        about = case.__doc__.partition(":")[0]
        for is_freed in (False, True):
            slope, used, kinds = km.memory.isolated(grown, case, is_freed)
            how = "with free()" if is_freed else "as it is"
            figures = f"{slope:+.0f} KiB, used {used:+.0f} KiB, {kinds}"
            print(f"{backend} {about}, {how}: {figures}", flush=True)
            if abs(slope) < FLAT_KIB:
                break


def print_models(backend):
    """Print growth over 50 models in three ways."""
    for how in ("plain", "free", "isolated"):
        mib, seconds = km.memory.isolated(many_models, how)
        figures = f"{mib:+.1f} MiB, {seconds:.2f} s each"
        print(f"{backend} 50 models, {how}: {figures}", flush=True)


def print_cost(backend):
    """Print CPU seconds with and without a scope."""
    figures = km.memory.isolated(cost)()
    print(backend, {how: f"{value:.2f} s" for how, value in figures.items()})


PARTS = {
    "reports": print_reports,
    "models": print_models,
    "cost": print_cost,
}


def main():
    """Print the tables that were asked for, all without an argument."""
    for part in sys.argv[1:] or PARTS:
        PARTS[part](keras.backend.backend())


if __name__ == "__main__":
    main()
