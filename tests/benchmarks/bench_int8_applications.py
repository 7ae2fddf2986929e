"""int8 of keras.applications: file, RAM, and the error of every quantized layer.

Run by hand: python tests/benchmarks/bench_int8_applications.py [NET...]
"""

import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

import kerasmem as km
from kerasmem.files.write import save_stored
from kerasmem.graph.clone import clone
from kerasmem.graph.values import nbytes, to_numpy
from tests.models import in_place

SIZE = 96
NETS = (
    *("VGG16", "ResNet50", "InceptionV3", "Xception", "ConvNeXtTiny"),
    *("MobileNetV2", "EfficientNetB0", "DenseNet121", "NASNetMobile"),
)


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


def ratios(model, small, folder):
    """Return how many times smaller file and weights in RAM are."""
    save_stored(model, Path(folder) / "float.keras")
    km.save_model(small, Path(folder) / "int8.keras")
    sizes = [(Path(folder) / f"{n}.keras").stat().st_size for n in ("float", "int8")]
    weights = [sum(map(nbytes, each.weights)) for each in (model, small)]
    return sizes[0] / sizes[1], weights[0] / weights[1]


def main():
    for name in sys.argv[1:] or NETS:
        size = 128 if name == "NASNetMobile" else SIZE
        model, images = calibrated(name, size)
        small = clone(model)
        in_place(km.Quantize("int8"), small)
        with tempfile.TemporaryDirectory() as folder:
            file_ratio, ram_ratio = ratios(model, small, folder)
        errors = layer_errors(model, small, images)
        print(
            f"{name}: file {file_ratio:.2f}x smaller, weights in RAM {ram_ratio:.2f}x, "
            f"{len(errors)} int8 layers, worst relative L2 {max(errors.values()):.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
