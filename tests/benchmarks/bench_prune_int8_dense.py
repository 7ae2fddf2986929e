"""A dense 784-1024-512-10 network, pruned to 95 % and int8: its files.

Run by hand, 5 minutes of one core: python tests/benchmarks/bench_prune_int8_dense.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

import kerasmem as km
from kerasmem.demo.recipe import mirrored_demo_data

INT8 = km.Quantize("int8", granularity="tensor")  # 16 values stay 16 codes


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
    train, test = mirrored_demo_data()
    model = dense_network()
    model.fit(*train, epochs=8, batch_size=64, verbose=0)

    def made(model, *steps, coding="deflate", epochs=0):
        return km.compress(
            model,
            list(steps),
            data=train,
            validation_data=test,
            fine_tune_epochs=epochs,
            batch_size=64,
            seed=0,
            coding=coding,
        )

    pruned = made(model, km.Prune(0.95, include="kernel"), epochs=8)
    stock = pruned.report.before
    accuracy = stock.metrics["accuracy"]
    print(f"{stock.file_bytes} bytes, accuracy {accuracy:.4f}; pruned:")
    clustered = made(pruned.model, km.Cluster(16, include="kernel"), epochs=2).model
    for name, start, coding in (
        ("int8", pruned.model, "deflate"),
        ("int8, entropy", pruned.model, "entropy"),
        ("16 clusters, int8, entropy", clustered, "entropy"),
    ):
        after = made(start, INT8, coding=coding).report.after
        print(
            f"{name}: {after.file_bytes} bytes, "
            f"{stock.file_bytes / after.file_bytes:.1f}x smaller, "
            f"accuracy {after.metrics['accuracy']:.4f}"
        )


if __name__ == "__main__":
    main()
