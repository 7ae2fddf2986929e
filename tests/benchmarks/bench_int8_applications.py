"""int8 of keras.applications: file, RAM, and the error of every quantized layer.

Run by hand: python tests/benchmarks/bench_int8_applications.py
"""

import tempfile
from pathlib import Path

import keras
import numpy as np

import kerasmem as km
from kerasmem.cli.main import main as kerasmem
from kerasmem.graph.values import to_numpy

SIZE = 96


def calibrated(name, size=SIZE):
    """Return a net of keras.applications whose BatchNorms fit one batch of data."""
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3))
    images = np.random.default_rng(0).normal(size=(16, size, size, 3)).astype("float32")
    norms = [x for x in model.layers if isinstance(x, keras.layers.BatchNormalization)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    model(images, training=True)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model, images


def layer_errors(model, small, images):
    """Return relative L2 errors of int8 layers, each fed the float model's input."""
    layers = [x for x in small.layers if type(x).__name__.startswith("Quantized")]
    names = [layer.name for layer in layers]
    probe = keras.Model(model.inputs, [model.get_layer(n).input for n in names])
    errors = {}
    for name, fed in zip(names, probe.predict(images[:4], verbose=0), strict=True):
        exact = to_numpy(model.get_layer(name)(fed))
        found = to_numpy(small.get_layer(name)(fed))
        errors[name] = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    return errors


def main():
    for name in ("ResNet50", "MobileNetV2"):
        model, images = calibrated(name)
        with tempfile.TemporaryDirectory() as folder:
            path, out = Path(folder) / "float.keras", Path(folder) / "int8.keras"
            model.save(path)
            kerasmem(["compress", str(path), "-o", str(out), "--quantize", "int8"])
            small = km.load_model(out)
            ratio = path.stat().st_size / out.stat().st_size
        ram = sum(a.nbytes for a in model.get_weights()) / sum(
            a.nbytes for a in small.get_weights()
        )
        errors = layer_errors(model, small, images)
        print(
            f"{name}: file {ratio:.2f}x smaller, weights in RAM {ram:.2f}x, "
            f"{len(errors)} int8 layers, worst relative L2 {max(errors.values()):.2%}"
        )


if __name__ == "__main__":
    main()
