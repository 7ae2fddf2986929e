"""Zeros and channels: the two ways to prune, on one small convolutional network.

    python examples/prune_in_two_ways.py

The same on the command line:

    kerasmem compress model.keras -o zeros.keras --prune 0.8 \
        --data data.npz --fine-tune-epochs 2
    kerasmem compress model.keras -o narrow.keras --prune-channels 0.5 \
        --data data.npz --fine-tune-epochs 2
"""

import keras

import kerasmem as km
from kerasmem.compression.prune.analysis import sensitivity
from kerasmem.demo.recipe import load_demo_data

L = keras.layers


def trained_model(data: tuple) -> keras.Model:
    """Return a small classifier of images."""
    inputs = keras.Input((28, 28))
    x = L.Reshape((28, 28, 1))(L.Rescaling(1 / 255)(inputs))
    for name, width in (("first", 16), ("second", 32)):
        x = L.Conv2D(width, 3, strides=2, use_bias=False, name=name)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
    x = L.Dense(64, activation="relu", name="hidden")(L.Flatten()(x))
    model = keras.Model(inputs, L.Dense(10, activation="softmax", name="classes")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(*data, epochs=4, verbose=0)
    return model


def told(name: str, result: km.CompressionResult) -> None:
    """Print what a way to prune did."""
    before, after = result.report.before, result.report.after
    print(
        f"{name}: parameters {after.parameters:,} of {before.parameters:,}, "
        f"not zero {after.nonzero:,}, "
        f"file {before.file_bytes / after.file_bytes:.1f} times smaller, "
        f"accuracy {before.metrics['accuracy']:.3f} to "
        f"{after.metrics['accuracy']:.3f}"
    )


def main() -> None:
    """Look which layers bear pruning, then prune zeros and channels, and print both."""
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = load_demo_data()
    data, validation_data = (x[:3000], y[:3000]), (x_test[:1000], y_test[:1000])
    model = trained_model(data)

    found = sensitivity(model, data, sparsities=(0.5, 0.7, 0.9))
    print(found.table())

    ways = {
        "zeros": km.Prune(0.8, ratios=found.ratios(0.8)),
        "channels": km.PruneChannels(0.5),
    }
    for name, way in ways.items():
        result = km.compress(
            model,
            way,
            data=data,
            validation_data=validation_data,
            fine_tune_epochs=2,
            seed=0,
        )
        told(name, result)


if __name__ == "__main__":
    main()
