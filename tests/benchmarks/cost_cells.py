"""Models, verbs and commands of `bench_costs`.

A verb is a function that prepares a case and returns the call that is measured.
"""

import importlib
from functools import cached_property, partial

import keras
import numpy as np

import kerasmem as km

L = keras.layers
ROWS, BATCH, LENGTH = 16, 8, 64
SIZES = ("20", "80", "320", "1280")


def stack(shape, *layers):
    inputs = x = keras.Input(shape)
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x)


def cnn(width=64, size=32):
    convolutions = [L.Conv2D(n * width, 3, use_bias=False) for n in (1, 2, 3)]
    groups = [(each, L.BatchNormalization(), L.ReLU()) for each in convolutions]
    layers = [*sum(groups, ()), L.GlobalAveragePooling2D(), L.Dense(32), L.ReLU()]
    return stack((size, size, 3), *layers, L.Dense(10))


def mlp():
    return stack((2500,), *(L.Dense(5000, "relu") for _ in range(4)), L.Dense(2500))


def bert():
    hub = importlib.import_module("keras_hub").models
    backbone = hub.BertBackbone(30522, 12, 12, 768, 3072)
    task = hub.BertTextClassifier(backbone, num_classes=2, preprocessor=None)
    return keras.Model(task.inputs, task.outputs)  # without the metrics of the task


def chains(count):
    """Return eight chains of Dense layers side by side; every tenth is normalized."""
    inputs, ends = keras.Input((32,)), []
    for number in range(8):
        x = inputs
        for n in range(number, count, 8):
            linear = n % 80 // 8 == 4
            x = L.Dense(32, None if linear else "relu")(x)
            x = L.BatchNormalization()(x) if linear else x
        ends.append(x)
    return keras.Model(inputs, L.Dense(4)(L.Add()(ends)))


MODELS = {
    "CNN": cnn,
    "ResNet50": lambda: keras.applications.ResNet50(weights=None),
    "MobileNetV2": lambda: keras.applications.MobileNetV2(weights=None),
    "BERT": bert,
    "MLP": mlp,
}
MAKERS = {**MODELS, **{size: partial(chains, int(size)) for size in SIZES}}
MAKERS["tiny"] = partial(cnn, 8, 12)


class Case:
    """A model in a file, samples for it, and a folder for new files."""

    def __init__(self, name, folder):
        self.folder, self.path = folder, folder / f"{name}.keras"
        if not self.path.exists():
            model = MAKERS[name]()
            model.compile("sgd", "mse")
            model.save(self.path)

    @cached_property
    def model(self):
        model = keras.models.load_model(self.path)
        model.compile("sgd", "mse")
        return model

    def samples(self, rows=ROWS):
        ones, shape = np.ones, self.model.output_shape[1:]
        shapes = {i.name: [n or LENGTH for n in i.shape[1:]] for i in self.model.inputs}
        x = {name: ones((rows, *each), "int32") for name, each in shapes.items()}
        if len(x) == 1:
            (shape_of_x,) = shapes.values()
            x = np.random.default_rng(0).normal(size=(rows, *shape_of_x))
            x = x.astype("float32")
        return x, np.zeros((rows, *shape), "float32")

    @property
    def length(self):
        return LENGTH if len(self.model.inputs) > 1 else None

    @property
    def lengths(self):
        return {"input_shape": [(LENGTH,)] * 3} if self.length else {}


def compress(*steps, data=False):
    def prepare(case):
        model, more = case.model, {"data": case.samples()} if data else {}
        return lambda: km.compress(model, [*steps], verbose=0, **more)

    return prepare


def mixed(case):
    budget = km.Budget(int(0.8 * case.model.count_params()))
    return compress(km.Quantize("mixed", budget=budget), data=True)(case)


def save_result(case):
    result = km.compress(case.model, km.Quantize("int8"))
    return lambda: result.save(case.folder / "result.keras")


def dequantize(case):
    return partial(km.dequantize, km.compress(case.model, km.Quantize("int8")).model)


def export(name, scheme):
    def prepare(case):
        more = {"scheme": scheme, "tolerance": 1e9, **case.lengths}
        if scheme == "int8-static":
            more["samples"] = case.samples()
        return partial(km.export, case.model, case.folder / name, **more)

    return prepare


def fit(function, *monitors):
    def prepare(case):
        callbacks = [monitor(log_dir=case.folder / "run") for monitor in monitors]
        more = {"batch_size": BATCH, "verbose": 0, "callbacks": callbacks}
        return partial(function, case.model, *case.samples(), **more)

    return prepare


def distill(case):
    student = keras.models.clone_model(case.model)
    student.compile("sgd", "mse")
    return partial(km.distill, case.model, student, case.samples(BATCH), verbose=0)


def predict(case):
    x, path = case.samples()[0], case.folder / "predictions.npy"
    return lambda: km.predict(case.model, x, output=path, batch_size=BATCH)


def saved(model, case):
    return model.save(case.folder / "keras.keras")


def of_model(function, *arguments, **options):
    return lambda case: partial(function, case.model, *arguments, **options)


KERAS, PROCESS, FIT, CLONE = "Keras", "Keras process", "fit", "Keras clone, save"
MONITORS = (km.callbacks.MemoryMonitor, km.callbacks.GradientMonitor)
VERBS = {
    KERAS: lambda c: lambda: saved(keras.models.load_model(c.path), c),
    CLONE: lambda c: lambda m=c.model: saved(keras.models.clone_model(m), c),
    "load_model": lambda c: partial(km.load_model, c.path),
    "save_model": lambda c: partial(km.save_model, c.model, c.folder / "km.keras"),
    "compress int8": compress(km.Quantize("int8")),
    "compress int4": compress(km.Quantize("int4")),
    "compress prune": compress(km.Prune(0.8)),
    "compress channels": compress(km.PruneChannels(0.3)),
    "compress cluster": compress(km.Cluster(16)),
    "compress factorize": compress(km.Factorize(rank_ratio=0.25)),
    "compress float16": compress(km.Quantize("float16")),
    "compress mixed": mixed,
    "compress int8-static": compress(km.Quantize("int8-static"), data=True),
    "compress fold": compress(km.FoldBatchNorm()),
    "compress equalize": compress(km.Equalize()),
    "result.save": save_result,
    "dequantize": dequantize,
    "export float .tflite": export("m.tflite", "float"),
    "export int8 .tflite": export("m.tflite", "int8-static"),
    "export float .onnx": export("m.onnx", "float"),
    "export int8 .onnx": export("m.onnx", "int8-static"),
    "estimate_memory": lambda c: of_model(km.estimate_memory, BATCH, **c.lengths)(c),
    "rematerialize": of_model(km.rematerialize),
    "compress_activations": of_model(km.compress_activations),
    "quantization_aware": of_model(km.quantization_aware, km.Quantize("int8")),
    "make_student": of_model(km.make_student, 0.25),
    "predict": predict,
    "distill, one step": distill,
    FIT: fit(keras.Model.fit),
    "km.fit": fit(km.fit),
    "fit, both monitors": fit(keras.Model.fit, *MONITORS),
}
RESAVE = "import sys, keras; keras.models.load_model(sys.argv[1]).save(sys.argv[2])"
COMMANDS = {
    "kerasmem inspect": "inspect {model}",
    "kerasmem estimate": "estimate {model} --batch-size 8",
    "kerasmem compress": "compress {model} --quantize int8 -o {folder}/a.keras",
    "kerasmem evaluate": "evaluate {model} --data {data} --batch-size 8",
    "kerasmem compare": "compare {model} {copy} --data {data} --batch-size 8",
    "kerasmem distill": "distill {model} --student-ratio 0.25 --data {data} "
    "--batch-size 8 -o {folder}/a.keras",
    "kerasmem export": "export {model} -o {folder}/a.tflite",
    "kerasmem report": "report {run} -o {folder}/a.html",
    "kerasmem tune": "tune {model} --batch-size 8 --only remat",
    "kerasmem runtimes": "runtimes {model}",
}
BESIDE = {"km.fit": FIT, "fit, both monitors": FIT, **dict.fromkeys(COMMANDS, PROCESS)}
WITH_LENGTH = ("estimate", "export", "tune", "runtimes")
