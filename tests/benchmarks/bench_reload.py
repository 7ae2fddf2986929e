"""Compressed files of models built in their constructor, opened in a fresh process.

Run by hand, about three minutes on 2 cores:

    python -m tests.benchmarks.bench_reload

Gemma, BERT and Whisper of KerasHub and a subclassed model go through every scheme, the
entropy coding, two compressions in a row and a recipe. It prints the
relative L2 distance between the answers before saving and those of a fresh process.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import kerasmem as km
from tests.keras_hub.families import (
    FAMILIES,
    Tagger,
    apart,
    samples,
    subclassed,
)
from tests.masked import called

MODELS = {name: FAMILIES[name] for name in ("Gemma", "Bert", "Whisper")}
MODELS["a class of one's own"] = subclassed


def _made(make):
    """Yield the name of a treatment and the model that it leaves."""
    for scheme in ("int8", "int8-dynamic", "int4"):
        yield scheme, km.compress(make(), km.Quantize(scheme)).model
    pruned = km.compress(make(), km.Prune(0.5)).model
    yield "two in a row", km.compress(pruned, km.Quantize("int8")).model
    model, recipe = make(), [km.Prune(0.5), km.Quantize("int8")]
    yield "recipe", km.compress(model, recipe).model


def write(name, folder):
    """Save every treated model of one class, with what it answers."""
    x = samples(MODELS[name]())
    np.savez(folder / "x.npz", **(x if isinstance(x, dict) else {"": x}))
    for kind, model in _made(lambda: _seeded(name)):
        np.savez(folder / f"{kind}.npz", *called(model, x))
        km.save_model(model, folder / f"{kind}.keras")
        if kind == "int8":
            np.savez(folder / "entropy.npz", *called(model, x))
            km.save_model(model, folder / "entropy.keras", coding="entropy")


def _seeded(name):
    import keras

    keras.utils.set_random_seed(1)
    return MODELS[name]()


def read(folder):
    """Print how far the answers of every file are from those before it was saved."""
    with np.load(folder / "x.npz") as file:
        x = {key: file[key] for key in file.files}
    x = x.get("", x)
    for path in sorted(folder.glob("*.keras")):
        model = km.load_model(path, custom_objects={"Tagger": Tagger})
        with np.load(path.with_suffix(".npz")) as file:
            expected = [file[key] for key in file.files]
        print(f"  {path.stem:22} {apart(called(model, x), expected):.1e}")


def _fresh(verb, *arguments):
    command = [sys.executable, "-m", "tests.benchmarks.bench_reload", verb, *arguments]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", name, folder]:
            write(name, Path(folder))
        case ["read", folder]:
            read(Path(folder))
        case _:
            for name in MODELS:
                with tempfile.TemporaryDirectory() as folder:
                    print(name, flush=True)
                    _fresh("write", name, folder)
                    _fresh("read", folder)
