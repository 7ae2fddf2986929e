"""ONNX files of models of every kind: made on the running backend, compared, timed.

Run by hand, with `pip install kerasmem[onnx]`, about a minute on TensorFlow; elsewhere
every file starts TensorFlow in a process of its own:

    KERAS_BACKEND=tensorflow python -m tests.benchmarks.bench_onnx

It prints, for each model, the largest difference from it as a share of the largest
output, the size of the file, and the time of a call of onnxruntime and of LiteRT, both
on one thread and in turns; or why there is no file.
"""

import os
import statistics
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import kerasmem as km
from kerasmem.demo.recipe import residual_network
from kerasmem.extras.litert.interpreters import LiteRT, Onnx
from kerasmem.stats.timing import in_turns
from tests.models import KINDS

L = keras.layers


def residual():
    return residual_network((28, 28, 1), 10, widths=(16, 16, 32, 64))


def log_determinant():
    inputs = keras.Input((4, 4))
    return keras.Model(inputs, keras.ops.slogdet(inputs)[1])


def models():
    pictures = np.random.default_rng(0).normal(size=(4, 28, 28, 1)).astype("float32")
    yield "small ResNet", residual(), pictures
    half = KINDS["conv2d"].make()
    for layer in half.layers[1:]:
        layer.dtype_policy = "mixed_float16"
    yield "conv2d, mixed_float16", half, KINDS["conv2d"].inputs()
    for scheme in ("int8", "int4"):
        small = km.compress(residual(), km.Quantize(scheme)).model
        yield f"small ResNet, {scheme} weights", small, pictures
    for name, kind in KINDS.items():
        yield name, kind.make(), kind.inputs()
    odd = np.random.default_rng(0).normal(size=(4, 4, 4)).astype("float32")
    yield "slogdet", log_determinant(), odd


def milliseconds(model, x, folder, onnx):
    """Medians of onnxruntime and, where there is a file, of LiteRT."""
    name = model.inputs[0].name
    calls = [lambda: onnx({name: x[:1]})]
    try:
        km.export(model, folder / "m.tflite", scheme="float", samples=x)
    except km.errors.ModelError:
        pass
    else:
        litert = LiteRT((folder / "m.tflite").read_bytes())
        calls.append(lambda: litert({name: x[:1]}))
    return [statistics.median(found) for found in in_turns(calls, 200, 1.0)]


def line(name, model, x, folder):
    path = folder / "m.onnx"
    try:
        report = km.export(model, path, samples=x)
    except km.errors.KerasMemError as error:
        return f"{name:32} {error}"
    text = f"{name:32} {report.difference:.1e}  {report.file_bytes:>9,} B"
    if name.startswith("small ResNet") and len(model.inputs) == 1:
        times = milliseconds(model, x, folder, Onnx(path.read_bytes()))
        text += "  " + ", ".join(f"{t:.3f} ms" for t in times)
    return text


def main():
    print(f"{keras.backend.backend()}, onnxruntime and LiteRT, batch of 1")
    with tempfile.TemporaryDirectory() as folder:
        for name, model, x in models():
            print(line(name, model, x, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
