"""kerasmem, doing every job that one of the others does."""

import keras

import kerasmem as km
from tests.benchmarks.peers import lite_files
from tests.benchmarks.peers.networks import (
    BATCH_SIZE,
    accuracy,
    fit,
    trained_network,
    weight_bytes,
)
from tests.benchmarks.peers.row import Row, sizes

TOOL, PACKAGE = "kerasmem", "kerasmem"
FORMS = {"deflate": ".keras", "entropy": ".keras, entropy"}


def files(task, name, job, result, codings=("deflate", "entropy"), lite=True):
    """Yield the rows of a result: Keras files as they are read back, and LiteRT's."""
    for coding in codings:
        path = task.path("ours.keras")
        km.save_model(result.model, path, coding=coding)
        again = km.load_model(path, compile=False)
        yield Row(
            name,
            job,
            form=FORMS[coding],
            weight_bytes=weight_bytes(again),
            accuracy=accuracy(again, keras, task.images()[1]),
            **sizes(path),
        )
    if lite:
        path = task.path("ours.tflite")
        result.export(path, samples=task.images()[1][0][:64])
        yield lite_files.row_of(task, name, job, path)


def compressed(*steps, trained=False, **forms):
    """Return a job that applies steps, with training after each or without."""

    def job_of(task, name, job):
        result = km.compress(
            trained_network(task, name, keras),
            list(steps) or "lossless",
            data=task.images()[0],
            fine_tune_epochs=task.more_epochs if trained else 0,
            batch_size=BATCH_SIZE,
            seed=0,
            verbose=0,
        )
        yield from files(task, name, job, result, **forms)

    return job_of


def aware(task, name, job):
    model, data = trained_network(task, name, keras), task.images()[0]
    callback = km.callbacks.QuantizationAware(km.Quantize("int8-static"))
    fit(model, data, task.more_epochs, [callback])
    choice = km.Quantize("int8-static", ranges=callback.ranges)
    result = km.compress(model, choice, data=data, verbose=0)
    yield from files(task, name, job, result)


PRUNE, INT8 = km.Prune(0.8), km.Quantize("int8")
ONE_SCALE = km.Quantize("int8", granularity="tensor")  # 16 values stay 16 codes
JOBS = {
    "float": compressed(),
    "prune 80 %": compressed(PRUNE, trained=True),
    "prune 80 %, int8 weights": compressed(PRUNE, INT8, trained=True),
    "16 clusters": compressed(km.Cluster(16), trained=True),
    "int8 weights": compressed(INT8),
    "int4 weights": compressed(km.Quantize("int4"), lite=False),
    "int8 activations": compressed(km.Quantize("int8-static")),
    "int8 activations, trained": aware,
    "prune, cluster, int8": compressed(PRUNE, km.Cluster(16), ONE_SCALE, trained=True),
}
