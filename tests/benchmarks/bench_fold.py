"""Folding on keras.applications: how much goes, and how far the outputs move.

Weights are random, statistics those of a training (`with_statistics`); in float32.

    python -m tests.benchmarks.bench_fold [NAME ...]
"""

import gc
import sys
import time

import keras
import numpy as np

from kerasmem.compression.quantize.fold import fold_batch_norm
from kerasmem.graph.values import to_numpy
from tests.compression.repair.test_fold_batch_norm import norms, with_statistics

FAMILIES = (
    *("MobileNet", "MobileNetV2", "MobileNetV3Small", "ResNet50", "ResNet50V2"),
    *("InceptionV3", "InceptionResNetV2", "Xception", "DenseNet121", "NASNetMobile"),
    *("EfficientNetB0", "EfficientNetV2B0"),
)
NUDGE = np.float32(1e-6)


def apart(expected, found):
    """Return the largest difference, as a share of the largest output."""
    return np.abs(expected - found).max() / np.abs(expected).max()


def main():
    """Print a line for each network."""
    for name in sys.argv[1:] or FAMILIES:
        make = getattr(keras.applications, name)
        size = 224 if name == "NASNetMobile" else 96
        model = make(
            weights=None, input_shape=(size, size, 3), classifier_activation=None
        )
        with_statistics(model)
        start = time.perf_counter()
        folded, _ = fold_batch_norm(model)
        seconds = time.perf_counter() - start
        x = np.random.default_rng(0).normal(size=(2, size, size, 3)).astype("float32")
        expected = to_numpy(model(x, training=False))
        error = apart(expected, to_numpy(folded(x, training=False)))
        nudged = apart(expected, to_numpy(model(x * (1 + NUDGE), training=False)))
        print(
            f"{name}: {len(norms(model))} BatchNormalizations, {len(norms(folded))} "
            f"stay; error {error:.1e} of the largest output ({nudged:.1e} for inputs "
            f"larger by {NUDGE:.0e}); {seconds:.1f} s",
            flush=True,
        )
        del model, folded
        keras.backend.clear_session()
        gc.collect()


if __name__ == "__main__":
    main()
