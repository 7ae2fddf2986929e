"""Twenty ordinary trainings, in which a scope and the monitors must find nothing.

    KERAS_BACKEND=torch python -m tests.benchmarks.bench_false_alarms [NAME ...]

The examples, small networks of KerasHub from their configs, networks of several kinds
of layers, data that is cached in the first epochs, and one `MemoryMonitor` in several
fits. `tests/memory/growth/test_false_alarms.py` runs three of them.
"""

import contextlib
import importlib
import io
import sys
import traceback

import keras
import numpy as np

import kerasmem as km
from tests.keras_hub.families import FAMILIES, samples, targets
from tests.keras_hub.matrix import compiled

EXAMPLES = (
    "callbacks_in_fit",
    "compress_a_saved_model",
    "prune_in_two_ways",
    "stream_with_pca",
    "teacher_to_student",
)
HUB = ("Gemma", "Bert", "ViT", "ResNet", "T5")
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 64)
DATA = {
    "vectors": (keras.Input((32,)), RNG.normal(size=(64, 32)).astype("float32")),
    "images": (keras.Input((16, 16, 3)), RNG.normal(size=(64, 16, 16, 3))),
    "words": (keras.Input((12,), dtype="int32"), RNG.integers(0, 100, (64, 12))),
}


def example(name):
    """Run one of our examples."""
    with contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module(f"examples.{name}").main()


def hub(family):
    """Train a small network of KerasHub."""
    model = compiled(FAMILIES[family]())
    x = samples(model, 8)
    return watched_training(model, x, targets(model, x))


def network(data, *layers):
    """Train a network of some layers."""
    inputs, x = DATA[data]
    tensor = inputs
    for layer in (*layers, keras.layers.Flatten(), keras.layers.Dense(4)):
        tensor = layer(tensor)
    model = keras.Model(inputs, tensor)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return watched_training(model, x, LABELS)


def watched_training(model, x, y):
    """Fit with validation and callbacks, evaluate, predict; return what was found."""
    monitors = [km.callbacks.MemoryMonitor(), km.callbacks.GradientMonitor()]
    best = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    model.fit(
        x, y, epochs=4, verbose=0, validation_data=(x, y), callbacks=[*monitors, best]
    )
    model.evaluate(x, y, verbose=0, callbacks=monitors[:1])
    model.predict(x, verbose=0, callbacks=monitors[:1])
    return [one.text for monitor in monitors for one in monitor.findings]


def small_model():
    """Return a compiled model of one layer."""
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


class CachedRows(keras.utils.PyDataset):
    """Reads a batch once, and keeps it: memory grows in the first epoch."""

    def __init__(self):
        super().__init__()
        self._cache = {}

    def __len__(self):
        return 8

    def __getitem__(self, index):
        """Return a batch of 8 samples."""
        if index not in self._cache:
            self._cache[index] = np.full((8, 32), index, "float32"), np.zeros((8, 1))
        return self._cache[index]


def cached_rows():
    """Train on data that fills a cache in the first epoch."""
    monitor = km.callbacks.MemoryMonitor()
    small_model().fit(CachedRows(), epochs=12, verbose=0, callbacks=[monitor])
    return [one.text for one in monitor.findings]


def several_fits():
    """Fit, evaluate and predict again and again with one monitor."""
    model, monitor = small_model(), km.callbacks.MemoryMonitor()
    x = DATA["vectors"][1]
    for _ in range(12):
        model.fit(x, x[:, :1], verbose=0, callbacks=[monitor])
        model.evaluate(x, x[:, :1], verbose=0, callbacks=[monitor])
        model.predict(x, verbose=0, callbacks=[monitor])
    return [one.text for one in monitor.findings]


L = keras.layers
TRAININGS = {
    **{name: lambda name=name: example(name) for name in EXAMPLES},
    **{family: lambda family=family: hub(family) for family in HUB},
    "dense and dropout": lambda: network("vectors", L.Dense(16), L.Dropout(0.5)),
    "batch normalization": lambda: network(
        "vectors", L.Dense(16), L.BatchNormalization()
    ),
    "convolution": lambda: network("images", L.Conv2D(8, 3), L.MaxPooling2D()),
    "separable convolution": lambda: network("images", L.SeparableConv2D(8, 3)),
    "augmentation": lambda: network("images", L.RandomFlip(), L.Conv2D(8, 3)),
    "GRU": lambda: network("words", L.Embedding(100, 8), L.GRU(8)),
    "LSTM": lambda: network("words", L.Embedding(100, 8), L.LSTM(8)),
    "mean of words": lambda: network(
        "words", L.Embedding(100, 8), L.GlobalAveragePooling1D()
    ),
    "cached rows": cached_rows,
    "several fits": several_fits,
}


def findings(name):
    """Return what scope and monitors find in one of `TRAININGS`, in words."""
    with km.memory.scope(name) as scope:
        found = TRAININGS[name]() or []
    return [*found, *(one.text for one in scope.findings)]


def main():
    """Print a line for each training."""
    backend, wrong = keras.backend.backend(), 0
    for name in sys.argv[1:] or TRAININGS:
        try:
            found = findings(name)
        except Exception:  # noqa: BLE001 - the others are run all the same
            found = [traceback.format_exc(limit=-2)]
        wrong += bool(found)
        print(backend, name, found or "nothing found", flush=True)
    print(f"{backend}: {len(TRAININGS)} trainings, {wrong} with findings")


if __name__ == "__main__":
    main()
