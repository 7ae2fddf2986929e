"""Files for LiteRT: written by a converter, judged by LiteRT's interpreter."""

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from tests.benchmarks.peers.row import Row, sizes


def converted(converter, path, x=None):
    """Write what a converter makes; with `x` in integers from end to end.

    Args:
        converter: a `tf.lite.TFLiteConverter`.
        path: where to.
        x: images to calibrate on.
    """
    if x is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([one[None]] for one in x[:512])
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    path.write_bytes(converter.convert())


def row_of(task, name, job, path, form=".tflite"):
    """Return the row of a LiteRT file, judged by LiteRT itself."""
    right = _accuracy(path, task.images()[1])
    return Row(name, job, form=form, accuracy=right, **sizes(path))


def _accuracy(path, test):
    runner = Interpreter(model_path=str(path)).get_signature_runner()
    (given,) = runner.get_input_details().items()
    x, (scale, zero_point) = test[0], given[1]["quantization"]
    if given[1]["dtype"] == np.int8:
        x = np.clip(np.rint(x / scale) + zero_point, -128, 127).astype("int8")
    answers = [
        next(iter(runner(**{given[0]: part}).values())) for part in np.split(x, 20)
    ]
    return float(np.mean(np.concatenate(answers).argmax(-1) == test[1]))
