"""Make a saved model smaller, and see what that costs.

    python examples/compress_a_saved_model.py

The same on the command line:

    kerasmem compress model.keras -o small.keras --prune 0.8 --quantize int8 \
        --data data.npz --fine-tune-epochs 2
"""

import tempfile
from pathlib import Path

import keras
from rich.console import Console

import kerasmem as km
from kerasmem.demo.recipe import load_demo_data
from kerasmem.records.comparison import comparison_table
from kerasmem.records.table import terminal_table
from kerasmem.records.weights import weight_table


def save_trained_model(path: Path, data: tuple) -> None:
    """Train a small classifier of images and save it at `path`."""
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(*data, epochs=3, verbose=0)
    model.save(path)


def main() -> None:
    """Prune four weights of five, make the rest int8, and print before and after."""
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = load_demo_data()
    data, validation_data = (x[:2000], y[:2000]), (x_test[:1000], y_test[:1000])
    with tempfile.TemporaryDirectory() as folder:
        original, small = Path(folder) / "model.keras", Path(folder) / "small.keras"
        save_trained_model(original, data)
        result = km.compress(
            original,
            [km.Prune(0.8), km.Quantize("int8")],
            data=data,
            validation_data=validation_data,
            fine_tune_epochs=2,
            seed=0,
        )
        result.save(small)
        reloaded = keras.models.load_model(small)
        accuracy = reloaded.evaluate(*validation_data, verbose=0)[1]

    console = Console(width=130)
    console.print(comparison_table(result.report.by_name()))
    console.print(terminal_table(weight_table(result.changes)))
    print(f"accuracy of the saved file, loaded by stock Keras: {accuracy:.4f}")


if __name__ == "__main__":
    main()
