"""TensorFlow's converter to LiteRT (once TFLite), on the trained Keras 3 net."""

import keras
import tensorflow as tf

from tests.benchmarks.peers.lite_files import converted, row_of
from tests.benchmarks.peers.networks import trained_network

TOOL, PACKAGE = "TFLite converter", "tensorflow"


def _converter(task, name):
    folder = task.path(f"{name}_saved_model")
    trained_network(task, name, keras).export(folder, verbose=False)
    return tf.lite.TFLiteConverter.from_saved_model(str(folder))


def plain(task, name, job):
    path = task.path("float.tflite")
    converted(_converter(task, name), path)
    yield row_of(task, name, job, path)


def dynamic(task, name, job):
    path, converter = task.path("dynamic.tflite"), _converter(task, name)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converted(converter, path)
    yield row_of(task, name, job, path)


def integer(task, name, job):
    path = task.path("integer.tflite")
    converted(_converter(task, name), path, task.images()[0][0])
    yield row_of(task, name, job, path)


JOBS = {"float": plain, "int8 weights": dynamic, "int8 activations": integer}
