"""Small sound files of every kind that is read, written into a folder."""

import json
import sys
import tarfile
from pathlib import Path

_LEGACY = Path(__file__).parents[2] / "legacy/data/models.tar.xz"
_OLD = ("dense", "convolutions", "lstm", "operators", "pruned", "quantized", "nested")
_OLD_FOLDERS = ("dense", "convolutions", "pruned")
COLUMNS = (("answer_0.bin", "float16", (3,)),)
STEPS = [
    {"technique": "prune", "sparsity": 0.5},
    {"technique": "prune_channels", "ratio": 0.5, "ignore": ["head"]},
    {"technique": "quantize", "scheme": "mixed", "budget": {"max_bytes": 4000}},
]


def write(folder: Path) -> None:
    """Write all of them; a kind is a file's or folder's name."""
    _models(folder)
    _data(folder)
    write_run(folder / "run")
    with tarfile.open(_LEGACY) as archive:
        archive.extractall(folder / "all_old", filter="data")
    old = folder / "all_old"
    for name in _OLD:
        for suffix in (".h5", ".keras"):
            if (old / f"{name}{suffix}").exists():
                (old / f"{name}{suffix}").rename(folder / f"old_{name}{suffix}")
    for name in _OLD_FOLDERS:
        (old / name).rename(folder / f"saved_{name}")


def _models(folder: Path) -> None:
    import keras
    import numpy as np

    import kerasmem as km

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="relu"),
            keras.layers.Dense(3, name="head"),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(8, 6, 6, 2)).astype("float32")
    model.train_on_batch(x, np.zeros((8, 3), "float32"))
    model.save(folder / "plain.keras")
    model.save(folder / "plain.h5")
    km.save_model(model, folder / "deflated.keras", include_optimizer=True)
    km.save_model(model, folder / "entropy.keras", coding="entropy")
    km.save_model(model, folder / "stored.keras", coding="stored")
    for scheme in ("int8", "int4", "int8-dynamic", "int8-static"):
        small = km.compress(model, km.Quantize(scheme), data=x, verbose=0)
        km.save_model(small.model, folder / f"{scheme}.keras")
        if scheme == "int4":
            km.save_model(small.model, folder / "int4_entropy.keras", coding="entropy")
    tokens = keras.Input((5,), dtype="int32")
    y = keras.layers.Embedding(7, 4, mask_zero=True)(tokens)
    y = keras.layers.MultiHeadAttention(2, 2)(y, y)[:, 0]
    y = keras.layers.Dense(2)(keras.layers.Add()([y, y * 2.0]))
    km.save_model(keras.Model(tokens, y), folder / "tokens.keras")


def _data(folder: Path) -> None:
    import numpy as np
    import yaml

    from kerasmem.compression.distill.cache import AnswerStore, Column

    (folder / "recipe.json").write_text(json.dumps({"steps": STEPS}))
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"steps": STEPS}))
    random = np.random.default_rng(0)
    arrays = {"x": random.normal(size=(8, 4)), "y": random.integers(0, 3, 8)}
    np.savez(folder / "data.npz", **arrays)
    np.savez_compressed(folder / "packed.npz", **arrays)
    store = AnswerStore(folder / "cache", "teacher", [Column(*c) for c in COLUMNS])
    keys = [bytes([i]) * 16 for i in range(5)]
    store.append(keys, [np.ones((5, 3), "float16")])
    store.finish()


def write_run(folder: Path) -> None:
    """Write a run with records of every kind."""
    from kerasmem.files.run_dir import add_timelines
    from tests.report.runs import small_run

    run = small_run()
    add_timelines(folder, run.timelines)
    (folder / "run.json").write_text(run.info.to_json())
    for name in ("memory", "gradients", "findings", "post_mortems"):
        lines = [f"{record.to_json()}\n" for record in getattr(run, name)]
        (folder / f"{name}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
