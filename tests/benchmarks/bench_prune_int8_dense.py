"""A dense 784-1024-512-10 network, pruned to 95 % and int8: the file.

Run by hand: python tests/benchmarks/bench_prune_int8_dense.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

import kerasmem as km
from kerasmem.demo.images import load_images


def dense_network():
    layers = [keras.layers.Dense(n, activation="relu") for n in (1024, 512)]
    ends = [keras.layers.Flatten(), keras.layers.Rescaling(1 / 255)]
    model = keras.Sequential(
        [keras.Input((28, 28)), *ends, *layers, keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    return model


def main():
    keras.utils.set_random_seed(0)
    data = load_images(None)
    model = dense_network()
    model.fit(*data.train, epochs=8, batch_size=64, verbose=0)
    report = km.compress(
        model,
        [km.Prune(0.95, include="kernel"), km.Quantize("int8")],
        data=data.train,
        validation_data=data.test,
        fine_tune_epochs=8,
        batch_size=64,
        seed=0,
    ).report
    before, after = report.before, report.after
    print(
        f"file {before.file_bytes} -> {after.file_bytes} bytes, "
        f"{report.file_ratio:.1f}x smaller; weights in RAM {report.weight_ratio:.2f}x; "
        f"accuracy {before.metrics['accuracy']:.4f} -> {after.metrics['accuracy']:.4f}"
    )


if __name__ == "__main__":
    main()
