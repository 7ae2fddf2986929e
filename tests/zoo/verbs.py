"""What a user does with a model: each function raises if the result is wrong.

A verb gets a fresh `Case` and an empty folder. It returns None, or the largest error of
the outputs, relative in the L2 norm.
"""

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import kerasmem as km
from kerasmem.cli import main
from kerasmem.files.data import whole_batch
from kerasmem.graph.input_shapes import fixed_batch
from tests.zoo.kinds import SAMPLES, Case, build

Verb = Callable[[Case, Path], float | None]
VERBS: dict[str, Verb] = {}
ROUNDING = 1e-3
"""Of float32 and, for other dtypes, what their own rounding allows."""
CONSTANT_BYTES = 64 << 20
"""Scratch space of a convolution on TensorFlow's CPU, whatever the batch size."""
TOLERANCE = {"int8": 0.03, "int8-dynamic": 0.15, "int8-static": 0.15, "int4": 0.30}


def verb(name: str) -> Callable[[Verb], Verb]:
    """Returns a decorator that adds a function to the table of verbs."""

    def add(function: Verb) -> Verb:
        VERBS[name] = function
        return function

    return add


class WrongResultError(AssertionError):
    """A result that differs from what it should be."""


def outputs_of(model: Any, x: Any) -> np.ndarray:
    """Returns all outputs for the samples as one float64 array."""
    reset_states(model)
    found = keras.tree.flatten(model.predict(x, batch_size=8, verbose=0))
    return np.concatenate([np.ravel(np.asarray(each, "float64")) for each in found])


def reset_states(model: Any) -> None:
    """Sets the states of stateful layers to zero."""
    for layer in model.layers:
        if getattr(layer, "stateful", False):
            layer.reset_state()


def check_close(found: np.ndarray, expected: np.ndarray, most: float) -> float:
    """Returns the relative L2 error; raises if it is larger than `most`."""
    if found.shape != expected.shape:
        raise WrongResultError(f"outputs of {found.size} for {expected.size} entries")
    error = float(np.linalg.norm(found - expected) / (np.linalg.norm(expected) or 1))
    if not error <= most:
        raise WrongResultError(f"the outputs differ by {error:.2%}, allowed {most:.2%}")
    return error


def rounding_of(case: Case) -> float:
    """Returns the tolerance for the compute dtype of a model."""
    dtypes = {layer.compute_dtype for layer in case.model.layers}
    return 0.02 if {"float16", "bfloat16"} & dtypes else ROUNDING


def trained(case: Case, **settings: Any) -> list[np.ndarray]:
    settings = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0} | settings
    keras.utils.set_random_seed(1)
    case.model.fit(case.x, case.y, **settings)
    return case.model.get_weights()


def check_same_weights(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        if np.asarray(one).dtype.kind == "f" and not np.allclose(
            one, other, rtol=1e-4, atol=1e-5
        ):
            raise WrongResultError("the weights after training differ")


def without_reordering() -> None:
    """Turns off what changes sums in TensorFlow, see `docs/watching.md`."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        options = {"arithmetic_optimization": False}
        tf.config.optimizer.set_experimental_options(options)


@verb("both monitors")
def _(case, folder):
    without_reordering()
    other = build(case.name)
    monitors = [km.callbacks.MemoryMonitor(), km.callbacks.GradientMonitor(every=1)]
    found = trained(case, callbacks=monitors)
    check_same_weights(found, trained(other))


@verb("estimate_memory")
def _(case, folder):
    estimate = km.estimate_memory(case.model, 8, **sizes_of(case))
    if not 0 < estimate.low_bytes <= estimate.peak_bytes <= estimate.high_bytes:
        raise WrongResultError("the interval is no interval")


@verb("estimate against the measured peak")
def _(case, folder):
    # So large that the activations of these small models are most of the memory.
    size = whole_batch_of(case) or 1 << 16
    cpu = {"device": "cpu", "jit_compile": False}
    estimate = km.estimate_memory(case.model, size, **cpu, **sizes_of(case))
    measured = km.estimate_memory(
        case.model, size, method="measured", data=(case.ids, case.y)
    )
    peak, slack = measured.peak_bytes, CONSTANT_BYTES
    if not estimate.low_bytes / 2 - slack <= peak <= 2 * estimate.high_bytes + slack:
        raise WrongResultError(
            f"measured {peak}, estimated from {estimate.low_bytes} to "
            f"{estimate.high_bytes} bytes"
        )


@verb("find_batch_size")
def _(case, folder):
    size = km.find_batch_size(case.model, "1GiB", data=(case.ids, case.y), largest=16)
    if size < 8:
        raise WrongResultError(f"batch size {size}")


@verb("km.fit")
def _(case, folder):
    other = build(case.name)
    keras.utils.set_random_seed(1)
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    km.fit(case.model, case.x, case.y, memory_limit="4GiB", **options)
    check_same_weights(case.model.get_weights(), trained(other))


@verb("rematerialize")
def _(case, folder):
    expected = outputs_of(case.model, case.x)
    lean = km.rematerialize(case.model, batch_size=8, **sizes_of(case))
    check_close(outputs_of(lean, case.x), expected, rounding_of(case))
    lean.fit(case.x, case.y, batch_size=8, verbose=0)


@verb("save_model and load_model")
def _(case, folder):
    expected = outputs_of(case.model, case.x)
    km.save_model(case.model, folder / "model.keras")
    loaded = km.load_model(folder / "model.keras", custom_objects=case.objects)
    check_close(outputs_of(loaded, case.x), expected, rounding_of(case))


def compress(case: Case, *steps: Any, **settings: Any) -> Any:
    settings |= {"custom_objects": case.objects, "batch_size": 8}
    return km.compress(case.model, list(steps), data=(case.ids, case.y), **settings)


@verb("Prune")
def _(case, folder):
    result = compress(case, km.Prune(0.5), fine_tune_epochs=1)
    pruned = sum(1 for change in result.changes if change.changed)
    if not pruned or not np.isfinite(outputs_of(result.model, case.x)).all():
        raise WrongResultError("nothing was pruned")
    saved_and_loaded(case, result, folder)


@verb("PruneChannels")
def _(case, folder):
    result = compress(case, km.PruneChannels(0.25))
    if result.model.count_params() >= case.model.count_params():
        raise WrongResultError("no parameter was removed")
    saved_and_loaded(case, result, folder)


def saved_and_loaded(case: Case, result: Any, folder: Path) -> None:
    result.save(folder / "small.keras")
    loaded = km.load_model(folder / "small.keras", custom_objects=case.objects)
    expected = outputs_of(result.model, case.x)
    check_close(outputs_of(loaded, case.x), expected, rounding_of(case))


def quantized(scheme: str) -> Verb:
    def run(case: Case, folder: Path) -> float | None:
        expected = outputs_of(case.model, case.x)
        result = compress(case, km.Quantize(scheme))
        error = check_close(
            outputs_of(result.model, case.x), expected, TOLERANCE[scheme]
        )
        saved_and_loaded(case, result, folder)
        return error

    return run


for _scheme in TOLERANCE:
    verb(f'Quantize("{_scheme}")')(quantized(_scheme))


@verb("quantization_aware")
def _(case, folder):
    aware = km.quantization_aware(case.model, km.Quantize("int8"))
    aware.fit(case.x, case.y, batch_size=8, verbose=0)
    result = km.compress(aware, km.Quantize("int8"), custom_objects=case.objects)
    outputs_of(result.model, case.x)


@verb("distill")
def _(case, folder):
    student = build(case.name).model
    data = case.ids, case.y
    taught = km.distill(case.model, student, data, epochs=1, batch_size=8)
    if not np.isfinite(outputs_of(taught, case.x)).all():
        raise WrongResultError("the student is not finite")


@verb("make_student")
def _(case, folder):
    student = km.make_student(case.model, ratio=0.5)
    if student.count_params() >= case.model.count_params():
        raise WrongResultError("the student is not smaller")
    outputs_of(student, case.x)


@verb("predict")
def _(case, folder):
    expected = outputs_of(case.model, case.x)
    reset_states(case.model)
    found = km.predict(case.model, case.x, output=folder / "out", batch_size=8)
    arrays = [np.ravel(np.asarray(a, "float64")) for a in keras.tree.flatten(found)]
    check_close(np.concatenate(arrays), expected, 1e-6)


@verb("export float")
def _(case, folder):
    options = {"samples": (case.ids,), **sizes_of(case)}
    batch_size = batch_of_file(case)
    km.export(case.model, folder / "m.tflite", batch_size=batch_size, **options)


@verb("export int8")
def _(case, folder):
    options = {"scheme": "int8-dynamic", "samples": (case.ids,), **sizes_of(case)}
    batch_size = batch_of_file(case)
    km.export(case.model, folder / "m.tflite", batch_size=batch_size, **options)


def batch_of_file(case: Case) -> int | None:
    """Returns 8 for a file that cannot have an open batch axis, as of loops."""
    layers = case.model._flatten_layers()
    has_loop = any(isinstance(layer, keras.layers.RNN) for layer in layers)
    return 8 if has_loop else whole_batch_of(case)


def whole_batch_of(case: Case) -> int | None:
    """Returns 8 for a model that takes batches of one size only, else `None`."""
    return fixed_batch(case.model) or whole_batch(case.model, (case.ids,), 8)


def sizes_of(case: Case) -> dict[str, Any]:
    """Returns `input_shape=` for a model of open lengths."""
    tensors = getattr(case.model, "inputs", None) or []
    if all(None not in tuple(tensor.shape)[1:] for tensor in tensors):
        return {}
    shapes = keras.tree.map_structure(lambda array: array.shape[1:], case.ids)
    return {"input_shape": shapes}


def command(line: str) -> Verb:
    """Returns a verb that runs one command on the saved model, in this process."""

    def run(case: Case, folder: Path) -> None:
        model, data = folder / "model.keras", folder / "data.npz"
        other = folder / "other.keras"
        km.save_model(case.model, model)
        shutil.copy(model, other)
        write_data(case, data)
        names = {"model": model, "other": other, "data": data}
        words = line.format(**names, out=folder / "out.keras").split()
        words += ["--batch-size", "8", "--json", "--import", "tests.zoo.kinds"]
        if words[0] in ("estimate", "tune", "runtimes"):
            for array in keras.tree.flatten(case.ids) if sizes_of(case) else ():
                words += ["--input-shape", ",".join(map(str, array.shape[1:]))]
        is_hub = type(case.model).__module__.startswith("keras_hub.")
        own_compile = type(case.model).compile is not keras.Model.compile
        if (
            own_compile
            and not is_hub
            and words[0] in ("compress", "evaluate", "compare")
        ):
            words += ["--loss", "mse"]  # not in the file if `compile` is overridden
        errors, answer = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(errors):
            code = main(words)
        if code:
            last = errors.getvalue().strip().splitlines()[-1]
            raise CommandError(code, last)
        json.loads(answer.getvalue())

    return run


class CommandError(Exception):
    """A command that did not end with 0."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def write_data(case: Case, path: Path) -> None:
    """Writes the samples as `--data` reads them."""
    arrays = {}
    for name, part in (("x", case.ids), ("y", case.y)):
        if isinstance(part, dict):
            arrays |= {f"{name}_{key}": value for key, value in part.items()}
        elif isinstance(part, list):
            # A loaded model names its inputs after their layers.
            layers = case.model.layers
            names = [x.name for x in layers if isinstance(x, keras.layers.InputLayer)]
            arrays |= {f"{name}_{n}": v for n, v in zip(names, part, strict=True)}
        else:
            arrays[name] = part
    arrays = {name: np.asarray(values) for name, values in arrays.items()}
    texts = {k: v.astype(str) for k, v in arrays.items() if v.dtype == object}
    np.savez(path, **arrays | texts)


COMMANDS = {
    "inspect": "inspect {model}",
    "estimate": "estimate {model}",
    "tune": "tune {model} --only jit",
    "compress": "compress {model} -o {out} --quantize int8 --data {data}",
    "distill": "distill {model} -o {out} --student-ratio 0.5 --data {data} --epochs 1",
    "evaluate": "evaluate {model} --data {data}",
    "compare": "compare {model} {other} --data {data}",
    "runtimes": "runtimes {model} --data {data}",
}
for _name, _line in COMMANDS.items():
    verb(f"kerasmem {_name}")(command(_line))

assert SAMPLES % 8 == 0  # the stateful model takes batches of 8
