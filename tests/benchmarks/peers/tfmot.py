"""TensorFlow's model optimization toolkit, on the same net in tf_keras."""

import tensorflow_model_optimization as tfmot  # first: it chooses tf_keras

# isort: split
import tensorflow as tf
import tf_keras
from tensorflow_model_optimization.python.core.clustering.keras.experimental import (
    cluster as experimental,
)

from tests.benchmarks.peers import lite_files
from tests.benchmarks.peers.networks import (
    BATCH_SIZE,
    accuracy,
    compiled,
    fit,
    trained_network,
    weight_bytes,
)
from tests.benchmarks.peers.row import Row, sizes

TOOL, PACKAGE = "tfmot", "tensorflow-model-optimization"
STARTS = tfmot.clustering.keras.CentroidInitialization
CLUSTERS = {
    "number_of_clusters": 16,
    "cluster_centroids_init": STARTS.KMEANS_PLUS_PLUS,
}


def keras_files(task, name, job, model, forms=(".h5", ".keras")):
    """Yield the rows of Keras 2's files of a model."""
    right = accuracy(
        model, tf_keras, task.images()[1]
    )  # its optimizer is new: no state
    for form in forms:
        path = task.path(f"tfmot{form}")
        model.save(path)
        size = weight_bytes(model)
        yield Row(
            name, job, form=form, accuracy=right, weight_bytes=size, **sizes(path)
        )


def lite(task, name, job, model, optimize=False, **integers):
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if optimize:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    path = task.path("tfmot.tflite")
    lite_files.converted(converter, path, **integers)
    return lite_files.row_of(task, name, job, path)


def pruned_network(task, name):
    data = task.images()[0]
    steps = task.more_epochs * -(-len(data[0]) // BATCH_SIZE)
    schedule = tfmot.sparsity.keras.PolynomialDecay(
        0.0, 0.8, begin_step=0, end_step=steps // 2, frequency=10
    )
    model = trained_network(task, name, tf_keras)
    wrapped = tfmot.sparsity.keras.prune_low_magnitude(model, schedule)
    fit(
        compiled(wrapped, tf_keras),
        data,
        task.more_epochs,
        [tfmot.sparsity.keras.UpdatePruningStep()],
    )
    return tfmot.sparsity.keras.strip_pruning(wrapped)


def clustered_network(task, model, **choice):
    wrapped = experimental.cluster_weights(model, **CLUSTERS, **choice)
    fit(compiled(wrapped, tf_keras), task.images()[0], task.more_epochs)
    return tfmot.clustering.keras.strip_clustering(wrapped)


def aware_network(task, annotated, *scheme):
    with tfmot.quantization.keras.quantize_scope():
        aware = tfmot.quantization.keras.quantize_apply(annotated, *scheme)
    fit(compiled(aware, tf_keras), task.images()[0], task.more_epochs)
    return aware


def pruned(task, name, job):
    model = pruned_network(task, name)
    yield from keras_files(task, name, job, model)
    yield lite(task, name, job, model)


def pruned_int8(task, name, job):
    yield lite(task, name, job, pruned_network(task, name), optimize=True)


def clustered(task, name, job):
    model = clustered_network(task, trained_network(task, name, tf_keras))
    yield from keras_files(task, name, job, model)
    yield lite(task, name, job, model)


def aware(task, name, job):
    annotate = tfmot.quantization.keras.quantize_annotate_model
    model = aware_network(task, annotate(trained_network(task, name, tf_keras)))
    yield lite(task, name, job, model, x=task.images()[0][0])
    yield from keras_files(task, name, job, model, forms=(".h5",))


def chain(task, name, job):
    """Pruned, clustered with its zeros, trained with both and the rounding in sight."""
    sparse = clustered_network(task, pruned_network(task, name), preserve_sparsity=True)
    annotated = tfmot.quantization.keras.quantize_annotate_model(sparse)
    scheme = tfmot.experimental.combine.Default8BitClusterPreserveQuantizeScheme(
        preserve_sparsity=True
    )
    model = aware_network(task, annotated, scheme)
    stripped = tfmot.experimental.combine.strip_clustering_cqat(model)
    yield lite(task, name, job, stripped, x=task.images()[0][0])


JOBS = {
    "prune 80 %": pruned,
    "prune 80 %, int8 weights": pruned_int8,
    "16 clusters": clustered,
    "int8 activations, trained": aware,
    "prune, cluster, int8": chain,
}
