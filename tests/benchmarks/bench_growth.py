"""Memory that grows over many trainings: known reports, and false alarms.

    KERAS_BACKEND=torch python -m tests.benchmarks.bench_growth [reports] [alarms]

Each case runs in a process of its own. `reports`: loops written from the descriptions
of the threads; growth of resident memory a round after the first ones, and what a scope
finds. `models`: 50 models built, trained for a step and dropped: as they are, with
`scope.free()` after each, and isolated. `alarms`: ordinary trainings, in which a scope
must find nothing.
"""

import gc
import sys
import time

import keras
import numpy as np

import kerasmem as km
from kerasmem.processes.host import resident_bytes

ROUNDS, WARM_UP, MIB = 24, 8, 2**20
X = np.random.default_rng(0).normal(size=(256, 32)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def dense(units=256):
    """Return a compiled model of two layers."""
    model = keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(units, "relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    return model


def fit_and_clear(state):
    """keras#21090: a model per round, fitted, then clear_session and gc."""
    del state
    dense().fit(X, Y, verbose=0)
    keras.utils.clear_session()
    gc.collect()


def search_of_graphs(state):
    """keras#19058: functional models of several depths, dropped."""
    del state
    for depth in (1, 2, 3):
        inputs = x = keras.Input((32,))
        for _ in range(depth):
            x = keras.layers.Dense(16, "relu")(x)
        keras.Model(inputs, keras.layers.Dense(1)(x))


def small_gpt(state):
    """keras#21035: a decoder block with causal attention, fitted again and again."""
    if not state:
        tokens = keras.Input((64,), dtype="int32")
        x = keras.layers.Embedding(500, 32)(tokens)
        a = keras.layers.MultiHeadAttention(2, 16)(x, x, use_causal_mask=True)
        x = keras.layers.LayerNormalization()(x + a)
        model = keras.Model(tokens, keras.layers.Dense(500)(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
        state.append(model)
    ids = np.random.default_rng(0).integers(0, 500, (64, 64))
    state[0].fit(ids, ids, batch_size=16, verbose=0)


def predict_in_a_loop(state):
    """keras#13118, tensorflow#44711: predict on one sample, many times."""
    if not state:
        state.append(dense())
    for _ in range(20):
        state[0].predict(X[:1], verbose=0)


def predict_on_many_shapes(state):
    """A new length in every call: a trace for each on TensorFlow and JAX."""
    if not state:
        inputs = keras.Input((None, 4))
        outputs = keras.layers.Conv1D(8, 3, padding="same")(inputs)
        state.append(keras.Model(inputs, outputs))
    length = 4 + len(state)
    state[0].predict_on_batch(np.zeros((1, length, 4), "float32"))
    state.append(length)


def models_that_are_kept(state):
    """keras#20245, keras-tuner#873: every trial keeps its model."""
    model = dense()
    model.fit(X, Y, verbose=0)
    state.append(model)


REPORTS = (
    fit_and_clear,
    search_of_graphs,
    small_gpt,
    predict_in_a_loop,
    predict_on_many_shapes,
    models_that_are_kept,
)


def grown(name):
    """Return KiB a round and the kinds of what a scope finds."""
    case, state = globals()[name], []
    for _ in range(WARM_UP):
        case(state)
    with km.memory.scope(name) as scope:
        readings = []
        for _ in range(ROUNDS):
            case(state)
            gc.collect()
            readings.append(resident_bytes())
    slope = np.polyfit(range(ROUNDS), readings, 1)[0]
    return slope / 1024, sorted({finding.kind for finding in scope.findings})


def many_models(how, count=50):
    """Return MiB that 50 trained and dropped models left, and seconds a model."""

    def trial(_):
        dense(1024).fit(X, Y, verbose=0)

    trial(0)
    gc.collect()
    before, began = resident_bytes(), time.perf_counter()
    scope = km.memory.scope("trial")
    for number in range(count):
        if how == "isolated":
            km.memory.isolated(trial, number)
            continue
        with scope if how == "free" else km.memory.scope("none") as scope:
            trial(number)
        if how == "free":
            scope.free()
    gc.collect()
    seconds = (time.perf_counter() - began) / count
    return (resident_bytes() - before) / MIB, seconds


def ordinary():
    """Yield ordinary trainings by name."""
    image = np.random.default_rng(0).normal(size=(64, 16, 16, 3)).astype("float32")
    labels = np.random.default_rng(1).integers(0, 4, 64)
    words = np.random.default_rng(2).integers(0, 100, (64, 12))
    inputs = {
        "dense": (keras.Input((32,)), X[:64]),
        "image": (keras.Input((16, 16, 3)), image),
        "words": (keras.Input((12,), dtype="int32"), words),
    }
    bodies = {
        "dense": keras.layers.Dense(32, "relu"),
        "dropout": lambda x: keras.layers.Dropout(0.5)(keras.layers.Dense(16)(x)),
        "norm": lambda x: keras.layers.BatchNormalization()(keras.layers.Dense(16)(x)),
    }
    convolutions = {
        "conv": keras.layers.Conv2D(8, 3, activation="relu"),
        "separable": keras.layers.SeparableConv2D(8, 3),
        "pooled": lambda x: keras.layers.MaxPooling2D()(keras.layers.Conv2D(8, 3)(x)),
    }
    sequences = {
        "gru": lambda x: keras.layers.GRU(8)(keras.layers.Embedding(100, 8)(x)),
        "lstm": lambda x: keras.layers.LSTM(8)(keras.layers.Embedding(100, 8)(x)),
        "mean": keras.layers.Embedding(100, 8),
    }
    groups = {"dense": bodies, "image": convolutions, "words": sequences}
    for group, (tensor, data) in inputs.items():
        for name, body in groups[group].items():
            for optimizer in ("adam", "sgd") if name != "mean" else ("adam",):
                x = body(tensor)
                x = keras.layers.Flatten()(x) if len(x.shape) > 2 else x
                model = keras.Model(tensor, keras.layers.Dense(4)(x))
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                model.compile(optimizer, loss, metrics=["accuracy"])
                yield f"{group} {name} {optimizer}", model, data, labels


def alarms():
    """Return the names of ordinary trainings in which a scope found something."""
    found, number = [], 0
    for name, model, x, y in ordinary():
        monitors = [km.callbacks.MemoryMonitor(), km.callbacks.GradientMonitor()]
        with km.memory.scope(name) as scope:
            history = model.fit(
                x, y, epochs=3, verbose=0, validation_split=0.25, callbacks=monitors
            )
            best = model.get_weights()
            model.evaluate(x, y, verbose=0)
        number += 1
        found += [f"{name}: {f.text}" for f in scope.findings]
        del history, best
    return number, found


def main():
    """Print the tables that were asked for, all without an argument."""
    wanted = set(sys.argv[1:]) or {"reports", "models", "alarms"}
    backend = keras.backend.backend()
    if "reports" in wanted:
        for case in REPORTS:
            slope, kinds = km.memory.isolated(grown, case.__name__)
            about = case.__doc__.partition(":")[0]
            print(f"{backend} {case.__name__} ({about}): {slope:+.0f} KiB, {kinds}")
    if "models" in wanted:
        for how in ("plain", "free", "isolated"):
            mib, seconds = km.memory.isolated(many_models, how)
            print(f"{backend} 50 models, {how}: {mib:+.1f} MiB, {seconds:.2f} s each")
    if "alarms" in wanted:
        number, found = alarms()
        print(f"{backend} {number} ordinary trainings, {len(found)} findings: {found}")


if __name__ == "__main__":
    main()
