"""What the installed tfmot's quantizers give, batch after batch.

Run in a process of its own, because it sets TF_USE_LEGACY_KERAS:
    python tfmot_child.py IN.npz OUT.npz
"""

import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
from tensorflow_model_optimization.python.core.quantization.keras import quant_ops


def main(source, target):
    with np.load(source) as given:
        batches = {name: given[name] for name in given.files}
    found = {}
    for name, x in batches.items():
        ends = [tf.Variable(value) for value in (-6.0, 6.0)]
        rows = []
        for batch in x:
            tensor = tf.constant(batch)
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                y = quant_ops.MovingAvgQuantize(tensor, *ends, num_bits=8)
                total = tf.reduce_sum(y * y)
            rows.append((y, ends[0] + 0.0, ends[1] + 0.0, tape.gradient(total, tensor)))
        for part, values in zip(
            ("y", "low", "high", "gradient"), zip(*rows, strict=True), strict=True
        ):
            found[f"{name} {part}"] = np.stack([v.numpy() for v in values])
    np.savez(target, **found)


main(*sys.argv[1:])
