"""Train from a file that need not fit into memory, on fewer features.

    python examples/stream_with_pca.py

The samples lie on disk. A first pass over the stream fits scikit-learn's IncrementalPCA
batch by batch, a second writes the reduced samples beside them, and a network trains
from those. At no time are all samples in memory.
"""

import tempfile
from pathlib import Path

import keras
import numpy as np
from sklearn.decomposition import IncrementalPCA

import kerasmem as km
from kerasmem.demo.recipe import load_demo_data

COMPONENTS = 32


def write_samples(folder: Path) -> Path:
    """Write the images as one array, as a measuring device might; return the path."""
    (x, y), _ = load_demo_data()
    path = folder / "images.npz"
    np.savez(path, x=x.reshape(len(x), -1)[:4000].astype("float32") / 255, y=y[:4000])
    return path


def reduce_features(images: Path) -> tuple[Path, float]:
    """Write the samples with fewer features; return the path and the variance kept."""
    batches = km.memory.stream(images, batch_size=500, shuffle=False)
    pca = IncrementalPCA(n_components=COMPONENTS)
    for index in range(len(batches)):
        x, _ = batches[index]
        if len(x) >= COMPONENTS:  # a shorter last batch has too few samples
            pca.partial_fit(x)
    path = images.with_name("reduced.npy")
    reduced = np.lib.format.open_memmap(
        path, mode="w+", dtype="float32", shape=(batches.samples, COMPONENTS)
    )
    for index in range(len(batches)):
        x, _ = batches[index]
        start = index * batches.batch_size
        reduced[start : start + len(x)] = pca.transform(x)
    reduced.flush()
    return path, float(pca.explained_variance_ratio_.sum())


def network() -> keras.Model:
    """Return a small classifier of the reduced samples, compiled."""
    model = keras.Sequential(
        [
            keras.Input((COMPONENTS,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main() -> None:
    """Reduce, train for three epochs and print what was kept and learned."""
    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        images = write_samples(Path(folder))
        reduced, kept = reduce_features(images)
        print(f"{COMPONENTS} features keep {kept:.3f} of the variance")
        before, after = images.stat().st_size, reduced.stat().st_size
        print(f"on disk: {before:,} bytes, reduced {after:,}")

        x = np.load(reduced, mmap_mode="r")
        with np.load(images) as archive:
            y = archive["y"]
        data = km.memory.stream((x, y), batch_size=64, seed=0)
        history = network().fit(data, epochs=3, verbose=0).history
    accuracies = ", ".join(f"{value:.4f}" for value in history["accuracy"])
    print(f"accuracy by epoch: {accuracies}")


if __name__ == "__main__":
    main()
