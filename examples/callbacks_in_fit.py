"""Watch the memory and the gradients of a training.

    python examples/callbacks_in_fit.py

Both monitors write into `logs`, so whatever is listed after them sees their figures:
the CSV file here gets them as columns, and `EarlyStopping` could stop on them.
"""

import tempfile
from pathlib import Path

import keras

import kerasmem as km
from kerasmem.demo.recipe import load_demo_data


def network() -> keras.Model:
    """Return a small classifier of images, compiled."""
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main() -> None:
    """Train for three epochs and print what the monitors saw."""
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = load_demo_data()
    memory = km.callbacks.MemoryMonitor()
    gradients = km.callbacks.GradientMonitor(every=5)

    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "epochs.csv"
        history = network().fit(
            x[:640],
            y[:640],
            epochs=3,
            verbose=0,
            validation_data=(x_test[:320], y_test[:320]),
            callbacks=[memory, gradients, keras.callbacks.CSVLogger(table)],
        )
        print(f"columns of the CSV: {table.read_text().splitlines()[0]}")

    for name in ("loss", "gradient_norm", "gradient_norm_max", "host_peak_mib"):
        series = ", ".join(f"{value:.4g}" for value in history.history[name])
        print(f"{name}: {series}")
    if memory.unavailable:
        print(memory.unavailable)

    largest = max(gradients.records[-1].variables, key=lambda variable: variable.norm)
    print(
        f"largest gradient in the last epoch: {largest.path}, norm {largest.norm:.4g}"
    )


if __name__ == "__main__":
    main()
