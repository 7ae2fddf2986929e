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


def keras_files(task, name, job, result):
    """Yield a row for every coding, of the file as it is read back."""
    for coding in FORMS:
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


def lite_file(task, name, job, result):
    path = task.path("ours.tflite")
    result.export(path, samples=task.images()[1][0][:64])
    return lite_files.row_of(task, name, job, path)


def compressed(*steps, trained=False, lite=None):
    """Return a job that applies steps, with training after each or without.

    `lite` is the last step of what is written for LiteRT, where that is another one.
    """

    def job_of(task, name, job):
        def made(model, *steps, epochs=0):
            return km.compress(
                model,
                list(steps) or "lossless",
                data=task.images()[0],
                fine_tune_epochs=epochs,
                batch_size=BATCH_SIZE,
                seed=0,
                verbose=0,
            )

        epochs = task.more_epochs if trained else 0
        start = trained_network(task, name, keras)
        if lite:
            start = made(start, *steps[:-1], epochs=epochs).model
            result, for_lite = made(start, steps[-1]), made(start, lite)
        else:
            result = for_lite = made(start, *steps, epochs=epochs)
        yield from keras_files(task, name, job, result)
        if lite is not False:
            yield lite_file(task, name, job, for_lite)

    return job_of


def aware(task, name, job):
    model, data = trained_network(task, name, keras), task.images()[0]
    trained = km.quantization_aware(model, STATIC_ONE_SCALE)
    fit(trained, data, task.more_epochs, [km.callbacks.FreezeBatchNorm(0.5)])
    result = km.compress(trained, STATIC_ONE_SCALE, data=data, verbose=0)
    yield from keras_files(task, name, job, result)
    yield lite_file(task, name, job, result)


PRUNE, CLUSTER, INT8 = km.Prune(0.8), km.Cluster(16), km.Quantize("int8")
# With one scale for a kernel 16 values stay 16 codes, and most codes are small ones.
ONE_SCALE = km.Quantize("int8", granularity="tensor")
STATIC_ONE_SCALE = km.Quantize("int8-static", granularity="tensor")
JOBS = {
    "float": compressed(),
    "prune 80 %": compressed(PRUNE, trained=True),
    "prune 80 %, int8 weights": compressed(
        PRUNE, ONE_SCALE, trained=True, lite=STATIC_ONE_SCALE
    ),
    "16 clusters": compressed(CLUSTER, trained=True),
    "int8 weights": compressed(INT8),
    "int4 weights": compressed(km.Quantize("int4"), lite=False),
    "int8 activations": compressed(km.Quantize("int8-static")),
    "int8 activations, trained": aware,
    "prune, cluster, int8": compressed(
        PRUNE, CLUSTER, ONE_SCALE, trained=True, lite=STATIC_ONE_SCALE
    ),
}
