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

KINDS = {
    "LastValue": quant_ops.LastValueQuantize,
    "MovingAverage": quant_ops.MovingAvgQuantize,
    "AllValues": quant_ops.AllValuesQuantize,
}


def main(source, target):
    with np.load(source) as given:
        batches = {name: given[name] for name in given.files}
    found = {}
    for name, x in batches.items():
        kind, bits, symmetric, narrow, per_channel, _ = name.split()
        shape = (x.shape[-1],) if int(per_channel) else ()
        ends = [tf.Variable(tf.fill(shape, value)) for value in (-6.0, 6.0)]
        options = {"per_channel": True} if int(per_channel) else {}
        rows = []
        for batch in x:
            tensor = tf.constant(batch)
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                y = KINDS[kind](
                    tensor,
                    *ends,
                    num_bits=int(bits),
                    symmetric=bool(int(symmetric)),
                    narrow_range=bool(int(narrow)),
                    **options,
                )
                total = tf.reduce_sum(y * y)
            rows.append((y, ends[0] + 0.0, ends[1] + 0.0, tape.gradient(total, tensor)))
        for part, values in zip(
            ("y", "low", "high", "gradient"), zip(*rows, strict=True), strict=True
        ):
            found[f"{name} {part}"] = np.stack([v.numpy() for v in values])
    np.savez(target, **found)


main(*sys.argv[1:])
