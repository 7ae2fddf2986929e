"""What the installed tfmot gives: schedules at every step, 2:4 and block masks.

Run in a process of its own, because it sets TF_USE_LEGACY_KERAS:
    python tfmot_child.py OUT.npz
"""

import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
from tensorflow_model_optimization.python.core.sparsity.keras import (
    pruning_impl,
    pruning_schedule,
    pruning_utils,
)

SCHEDULES = {
    "polynomial": ("PolynomialDecay", (0.2, 0.8, 100, 110, 3, 2)),
    "linear": ("PolynomialDecay", (0.0, 0.9, 5, 45, 1, 4)),
    "constant": ("ConstantSparsity", (0.5, 7, 31, 8)),
    "forever": ("ConstantSparsity", (0.5, 10, -1, 10)),
}
STEPS = 130
N_OF_M = {"2:4": (2, 4), "1:4": (3, 4), "3:5": (2, 5)}  # tfmot counts the zeros
BLOCKS = {"4x4": ([4, 4], "AVG"), "max 2x6": ([2, 6], "MAX"), "1x3": ([1, 3], "AVG")}


def weights(shape):
    return np.random.default_rng(3).normal(size=shape).astype("float32")


def main(path):
    found = {}
    for name, (kind, arguments) in SCHEDULES.items():
        schedule = getattr(pruning_schedule, kind)(*arguments)
        told = [schedule(step) for step in range(STEPS)]
        found[f"due {name}"] = [bool(due) for due, _ in told]
        found[f"sparsity {name}"] = [float(sparsity) for _, sparsity in told]
    for name, zeros in N_OF_M.items():
        for shape in ((24, 7), (10, 6), (3, 3, 9, 5)):
            value = tf.constant(weights(shape))
            rows = pruning_utils.weights_rearrange(value)
            mask = pruning_utils.generate_m_by_n_mask(rows, zeros)
            mask = pruning_utils.m_by_n_sparsity_mask_prepare(mask, value.shape)
            found[f"{name} {shape}"] = mask.numpy()
    for name, (block, pooling) in BLOCKS.items():
        value = tf.Variable(weights((24, 12)))
        schedule = pruning_schedule.ConstantSparsity(0.5, 0)
        pruning = pruning_impl.Pruning(lambda: 0, [], schedule, block, pooling)
        found[f"block {name}"] = pruning._maybe_update_block_mask(value)[1].numpy()
    np.savez(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
