"""Folding on keras.applications: how much goes, and how far the outputs move.

Weights are random, statistics those of a training (`with_statistics`); in float32.

    python -m tests.benchmarks.bench_fold [NAME ...]
"""

import gc
import sys
import time

import keras
import numpy as np

from kerasmem.compression.quantize.repair import fold_batch_norm
from kerasmem.graph.values import to_numpy
from tests.compression.repair.test_fold_batch_norm import norms, with_statistics

FAMILIES = (
    *("MobileNet", "MobileNetV2", "MobileNetV3Small", "ResNet50", "ResNet50V2"),
    *("InceptionV3", "InceptionResNetV2", "Xception", "DenseNet121", "NASNetMobile"),
    *("EfficientNetB0", "EfficientNetV2B0"),
)


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
        expected, found = (to_numpy(m(x, training=False)) for m in (model, folded))
        error = np.abs(expected - found).max() / np.abs(expected).max()
        print(
            f"{name}: {len(norms(model))} BatchNormalizations, {len(norms(folded))} "
            f"stay; error {error:.1e} of the largest output; {seconds:.1f} s",
            flush=True,
        )
        del model, folded
        keras.backend.clear_session()
        gc.collect()


if __name__ == "__main__":
    main()
