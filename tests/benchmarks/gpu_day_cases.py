"""What `gpu_day` asks of a process of its own: the last line of stdout is its answer.

    python -m tests.benchmarks.gpu_day_cases KIND SETTINGS

Figures are bytes, seconds and milliseconds as their names say; None is not known.
"""

import functools
import json
import sys
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import pynvml
import pytest

import kerasmem as km
from kerasmem import backends
from kerasmem.errors import KerasMemError, OutOfMemoryError
from kerasmem.memory.estimate.device_specs import CARDS
from kerasmem.records import PostMortem
from kerasmem.stats.timing import in_turns, spread
from tests.benchmarks import bench_monitors
from tests.memory.estimate import test_measured

TESTS = Path(__file__).parents[1]
APPLICATIONS = {
    "resnet50": "ResNet50",
    "mobilenetv2": "MobileNetV2",
    "effnetb0": "EfficientNetB0",
    "vgg16": "VGG16",
}
OPTIMIZERS = {"adam": 1e-4, "sgd": 1e-3}
VOCABULARY, CLASSES = 20_000, 10
HUGE = 2**50


def marked_tests(settings):
    """Run every test that is marked `gpu`."""
    marker = "mark." + "gpu"
    files = [p for p in sorted(TESTS.rglob("test_*.py")) if marker in p.read_text()]
    counts = Counts()
    options = ["-m", "gpu", "-q", "-x", "-p", "no:cacheprovider"]
    code = pytest.main([*options, *map(str, files)], plugins=[counts])
    return vars(counts), f"pytest ended with {int(code)}" if code else None


class Counts:
    """How the tests ended, and the first failure; a plugin of pytest."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failure = None

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            setattr(self, report.outcome, getattr(self, report.outcome) + 1)
        if report.failed:
            self.failure = str(report.longrepr)[-1000:]


def monitors(settings):
    """Time the monitors against bare training, in one process of `bench_monitors`."""
    found = bench_monitors.child(
        settings["model"],
        keras.backend.backend(),
        settings["jit"],
        settings["first"],
        settings["turns"],
    )
    return found, None


def watched(settings):
    """Fit with both monitors; read the same memory from framework and driver."""
    model = compiled(network(settings["model"]), "adam", jit=None)
    x, y = batch(model, 256)
    memory, gradients = km.callbacks.MemoryMonitor(), km.callbacks.GradientMonitor()
    history = model.fit(
        x, y, batch_size=32, epochs=3, verbose=0, callbacks=[memory, gradients]
    ).history
    last = memory.records[-1]
    card = driver_bytes() if settings["device"] == "gpu" else None
    return {
        "history": history,
        "devices": [vars(device) for device in last.devices],
        "framework": framework_bytes(),
        "driver_used_bytes": card,
        "findings": [one.text for one in (*memory.findings, *gradients.findings)],
    }, None


def framework_bytes():
    """Return bytes in use and their peak, from the framework's own functions."""
    name = keras.backend.backend()
    if name == "jax":
        import jax

        counts = jax.devices()[0].memory_stats() or {}
        return [counts.get("bytes_in_use"), counts.get("peak_bytes_in_use")]
    if name == "torch":
        import torch

        if not torch.cuda.is_available():
            return [None, None]
        return [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return [None, None]
    counts = tf.config.experimental.get_memory_info("GPU:0")
    return [counts["current"], counts["peak"]]


def driver_bytes():
    """Return the bytes in use on the first card, by all processes."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def batch_size(settings):
    """Search for the largest batch size under a limit."""
    model = compiled(network(settings["model"]), "adam", jit=None)
    size = km.find_batch_size(model, settings["limit"])
    return {
        "batch_size": int(size),
        "limit_bytes": size.limit_bytes,
        "curve": [vars(point) for point in size.curve],
        "trials": len(size.trials),
    }, None


def rematerialized(settings):
    """Train one step rematerialized under half of the estimated peak, then plainly.

    The smaller peak comes first: JAX cannot reset the peak of a process.
    """
    size, jit = settings["batch"], settings["jit"]
    model = compiled(network(settings["model"]), "adam", jit=jit)
    device = settings["device"]
    plain = km.estimate_memory(model, size, device=device, jit_compile=jit)
    limit = plain.peak_bytes // 2
    try:
        lean = km.rematerialize(model, memory_limit=limit, batch_size=size)
        reached = True
    except KerasMemError:
        lean, reached = km.rematerialize(model, batch_size=size), False
    x, y = batch(model, size)
    figures = {"limit_bytes": limit, "limit_reached_by_plan": reached}
    for name, each in (("rematerialized", lean), ("plain", model)):
        first = step_peak(each, x, y)
        backends.current().reset_device_peak()
        figures[f"{name}_first_bytes"] = first
        figures[f"{name}_bytes"] = step_peak(each, x, y)
        (times,) = in_turns([lambda each=each: each.train_on_batch(x, y)], seconds=2)
        figures[f"{name}_step_ms"] = spread(times)[1]
    return figures, None


def products(settings):
    """Time inference of a stack of `Dense` in bfloat16 and with quantized weights."""
    keras.config.set_dtype_policy("bfloat16")
    width, depth = settings["width"], settings["depth"]
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(width) for _ in range(depth)]
    model = keras.Sequential([keras.Input((width,)), *hidden, keras.layers.Dense(16)])
    small = km.compress(model, km.Quantize(settings["scheme"]), verbose=0).model
    figures = {"milliseconds": {}}
    for rows in (1, 16, 256, 4096):
        x = keras.random.normal((rows, width), dtype="bfloat16", seed=1)
        calls = [chained(each, x) for each in (model, small, model)]
        outputs = [call() for call in calls]
        difference = np.linalg.norm(outputs[1] - outputs[0])
        figures[f"error_{rows}_rows"] = float(difference / np.linalg.norm(outputs[0]))
        times = in_turns(calls, seconds=1.0)
        names = ("bfloat16", settings["scheme"], "bfloat16 again")
        figures["milliseconds"][str(rows)] = {
            name: spread(of_one)[1] / CHAINED
            for name, of_one in zip(names, times, strict=True)
        }
    return figures, None


CHAINED = 10
"""Calls between two synchronizations."""


def chained(model, x):
    """Return a function that calls the compiled model `CHAINED` times, then waits."""
    name = keras.backend.backend()
    if name == "jax":
        import jax

        @jax.jit
        def stateless(trainable, others, x):
            return model.stateless_call(trainable, others, x, training=False)[0]

        trainable = [v.value for v in model.trainable_variables]
        others = [v.value for v in model.non_trainable_variables]
        run = functools.partial(stateless, trainable, others)
    elif name == "torch":
        import torch

        run = torch.no_grad()(model)
    else:
        import tensorflow as tf

        run = tf.function(model, jit_compile=True)

    def call():
        for _ in range(CHAINED):
            output = run(x)
        return keras.ops.convert_to_numpy(keras.ops.cast(output, "float32"))

    return call


def peak(settings):
    """Measure the peak of the first two steps, beside the estimate of today."""
    keras.config.set_dtype_policy(settings["dtype"])
    size, jit = settings["batch"], settings["jit"]
    model = compiled(network(settings["model"]), settings["optimizer"], jit=jit)
    x, y = batch(model, size)
    first = step_peak(model, x, y)
    was_reset = backends.current().reset_device_peak()
    second = step_peak(model, x, y)
    device = settings["device"]
    estimate = km.estimate_memory(model, size, device=device, jit_compile=jit)
    return {
        "first_bytes": first,
        "steady_bytes": second,
        "peak_was_reset": was_reset,  # if not, it is that of both steps
        "method": estimate.method,
        "estimated_bytes": estimate.peak_bytes,
        "low_bytes": estimate.low_bytes,
        "high_bytes": estimate.high_bytes,
        "estimated_first_bytes": estimate.first_step_bytes,
        "off": second and estimate.peak_bytes / second - 1,
        "inside": second and estimate.low_bytes <= second <= estimate.high_bytes,
        **(plan_figures(model, size, second) if jit and device == "gpu" else {}),
    }, None


def plan_figures(model, size, second):
    """Return what the plan for the card that is here says, or why there is none."""
    try:
        pynvml.nvmlInit()
        name = str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)))
        fitting = [c for c, card in CARDS.items() if card.title.startswith(name)]
        plan = km.estimate_memory(
            model, size, device=fitting[0], jit_compile=True, method="plan"
        )
    except (pynvml.NVMLError, IndexError, KerasMemError) as error:
        return {"no_plan": str(error)[:300]}
    return {
        "planned_bytes": plan.peak_bytes,
        "planned_low_bytes": plan.low_bytes,
        "planned_high_bytes": plan.high_bytes,
        "planned_first_bytes": plan.first_step_bytes,
        "plan_off": second and plan.peak_bytes / second - 1,
    }


def step_peak(model, x, y):
    """Return the peak after a step in bytes, None where nobody counts."""
    model.train_on_batch(x, y)
    readings = backends.current().device_memory()
    return max((reading.peak_bytes for reading in readings), default=None)


def network(name):
    """Return a network by the name that it has in `tests/data/gpu_peaks.jsonl`."""
    if name == "small":
        return bench_monitors.network(name)
    if name not in APPLICATIONS:
        return test_measured.network(name)
    return getattr(keras.applications, APPLICATIONS[name])(
        weights=None,
        classes=CLASSES,
        classifier_activation=None,
        input_shape=(224, 224, 3),
    )


def compiled(model, optimizer, *, jit):
    rate = OPTIMIZERS[optimizer]
    optimizer = {"adam": keras.optimizers.Adam, "sgd": keras.optimizers.SGD}[optimizer]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(rate), loss, jit_compile=jit)
    return model


def batch(model, size):
    random = np.random.default_rng(0)
    shape = (size, *model.inputs[0].shape[1:])
    if "int" in model.inputs[0].dtype:
        x = random.integers(0, VOCABULARY, shape).astype("int32")
    else:
        x = random.normal(size=shape).astype("float32")
    return x, random.integers(0, CLASSES, size).astype("int32")


def out_of_memory(settings):
    """Train with batches above the limit; compare with accumulated gradients."""
    size, jit = settings["limit_mib"] * 2**8, settings["jit"]
    x = np.random.default_rng(0).normal(size=(2 * size, 64)).astype("float32")
    arguments = {"x": x, "y": x[:, :1], "shuffle": False, "verbose": 0, "epochs": 2}
    model = tower(jit)
    # A limit that nothing reaches lets the step fail, and the fit has to recover.
    told = None if settings["foreseen"] else HUGE
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        ended = survived(model, folder, batch_size=size, memory_limit=told, **arguments)
        files = Path(folder).glob("post_mortems*.jsonl")
        lines = [line for file in files for line in file.read_text().splitlines()]
    mortems = [PostMortem.from_json(line) for line in lines]
    figures = {"batch": size, "ended": ended, "out_of_memory": len(mortems)}
    if mortems:
        figures["first_post_mortem"] = json.loads(mortems[0].to_json())
        figures["text"] = mortems[0].text()
    if ended == "survived":
        parts = 8
        reference = tower(jit, accumulation=parts)
        reference.fit(**arguments, batch_size=size // parts)
        pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
        figures["weights_differ"] = max(float(abs(a - b).max()) for a, b in pairs)
    return figures, None


def survived(model, folder, **arguments):
    try:
        km.fit(model, log_dir=folder, **arguments)
    except OutOfMemoryError as error:
        return f"{type(error).__name__}: {error}"
    return "survived"


def tower(jit, accumulation=None):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(256, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=accumulation)
    model.compile(optimizer, "mse", jit_compile=jit)
    return model


KINDS = {
    "marked_tests": marked_tests,
    "monitors": monitors,
    "watched": watched,
    "batch_size": batch_size,
    "rematerialized": rematerialized,
    "products": products,
    "peak": peak,
    "out_of_memory": out_of_memory,
}


def main():
    kind, settings = sys.argv[1], json.loads(sys.argv[2])
    on_gpu = settings["device"] == "gpu"
    if on_gpu and "limit_mib" in settings:  # before anything starts the card
        km.memory.configure(limit=settings["limit_mib"] * 2**20, growth=True)
    if on_gpu and not backends.current().cuda_ordinals():
        # TensorFlow without one of its libraries goes on, on the CPU.
        backend = keras.backend.backend()
        figures, error = None, f"{backend} sees no GPU, though there is one"
    else:
        figures, error = KINDS[kind](settings)
    # Flushed: a process whose memory XLA has torn may abort as it ends.
    print(f"\n{json.dumps({'figures': figures, 'error': error})}", flush=True)


if __name__ == "__main__":
    main()
