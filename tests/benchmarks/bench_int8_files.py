"""int8 files of networks that users build, beside those of other quantizers.

Run by hand, about two hours on 2 cores:

    python -m tests.benchmarks.bench_int8_files --data FOLDER --cache FOLDER
        [--networks cnn,bert] [--rows ours,tflite] [--again] [--codes]

`--data` holds `mnist.npz` and `fashion_mnist.npz`. Trained networks and results stay in
`--cache`; a row that is there is not run again without `--again`. Each row runs in a
child process: seconds with the float export, the peak of resident memory above the
loaded model, and milliseconds a sample on one thread. `--codes` compares instead
Keras's int8-static model with its file: the share of outputs of the file within one
step of those of the model, and that of equal decisions.
"""

import argparse
import json
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import keras_hub  # noqa: F401 - registers classes of saved networks
import numpy as np
import onnxruntime
import onnxruntime.quantization as ort
import tensorflow as tf
import tf2onnx  # noqa: F401 - its time is no part of a row's
from ai_edge_litert.interpreter import Interpreter
from litert_quantizer import calibrator, quantizer, recipe
from litert_quantizer.utils import qsv_utils
from onnxruntime.quantization.shape_inference import quant_pre_process

import kerasmem as km
from kerasmem.extras.litert.interpreters import decoded, encoded
from tests.benchmarks.int8_networks import HELD_OUT, NETWORKS, register_classes

MOST_SECONDS, MOST_MEGABYTES = 600, 11_000
_FORK = multiprocessing.get_context("fork")


class Case:
    """A trained network from the cache.

    Args:
        folder: its folder.
    """

    def __init__(self, folder):
        arrays = np.load(folder / "data.npz")
        self.about = json.loads((folder / "about.json").read_text())
        register_classes()
        self.model = keras.models.load_model(folder / "model.keras")
        every = {name: arrays[f"input {name}"] for name in self.about["inputs"]}
        start = self.about["calibration"]
        self.labels, self.validation = None, None
        self.calibration = {name: array[:start] for name, array in every.items()}
        if "labels" in arrays:
            labels = arrays["labels"]
            middle = min(HELD_OUT, len(labels) // 2)
            held = {k: v[start : start + middle] for k, v in every.items()}
            self.validation, self.labels = (held, labels[:middle]), labels[middle:]
            start += middle
        self.test = {name: array[start:] for name, array in every.items()}
        self.expected = arrays["expected"]

    @property
    def one(self):
        """One array for models with one input, a dict for others."""
        if len(self.calibration) == 1:
            return next(iter(self.calibration.values()))
        return self.calibration

    def batches(self, names):
        """Yield samples to calibrate on one by one, by the names in a file.

        Args:
            names: of its inputs, by our names.
        """
        for n in range(self.about["calibration"]):
            yield {names[k]: v[n : n + 1] for k, v in self.calibration.items()}


# Rows: each takes a `Case` and a path without its ending, returns the path and facts.


def ours(case, path, kind, scheme):
    held = case.validation
    if held is not None:
        (x, y) = held
        held = (next(iter(x.values())) if len(x) == 1 else x), y
    report = km.export(
        case.model,
        path.with_suffix(kind),
        scheme=scheme,
        samples=case.one,
        validation_data=held,
        input_shape=case.about["input_shape"],
    )
    islands = Counter(each.precision for each in report.operations)
    reasons = Counter(
        f"{each.kind}: {each.precision}: {each.reason}" for each in report.operations
    )
    return path.with_suffix(kind), {
        "integer share": report.integer_share,
        "islands": dict(islands),
        "loss": f"{report.measure} {report.loss:.4g} of {report.tolerance:g}",
        "reasons": dict(reasons.most_common(12)),
    }


def tflite(case, path, static):
    try:
        return _tflite(case, path, static, _save_by_keras), {}
    except Exception as error:  # noqa: BLE001 - TensorFlow's and Keras's own
        how = f"fixed batch and training=False, after {first_words(error)}"
        return _tflite(case, path.with_name("again"), static, _save), {"how": how}


def _save_by_keras(case, path):
    signature = None
    if case.about["input_shape"] is not None:
        signature = {
            name: keras.InputSpec(array.dtype, (None, *array.shape[1:]), name=name)
            for name, array in case.calibration.items()
        }
        signature = [signature if len(signature) > 1 else signature.popitem()[1]]
    case.model.export(path, verbose=False, input_signature=signature)


def _save(case, path):
    """Write a SavedModel with a batch axis of 1 that never trains."""
    specs = [
        tf.TensorSpec((1, *array.shape[1:]), array.dtype, name)
        for name, array in case.calibration.items()
    ]

    def serve(*tensors):
        given = dict(zip(case.calibration, tensors, strict=True))
        inputs = given if len(given) > 1 else tensors[0]
        return {"output_0": case.model(inputs, training=False)}

    archive = keras.export.ExportArchive()
    archive.track(case.model)
    archive.add_endpoint("serve", serve, input_signature=specs)
    archive.write_out(str(path), verbose=False)


def _tflite(case, path, static, save):
    save(case, path)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(path))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if static:
        names = tf.saved_model.load(str(path)).signatures["serving_default"]
        names = _matched(case, list(names.structured_input_signature[1]))
        converter.representative_dataset = lambda: (
            ("serving_default", batch) for batch in case.batches(names)
        )
    target = path.with_suffix(".tflite")
    target.write_bytes(converter.convert())
    return target


def _floats(case, path, ending):
    path = path.with_name(f"float{ending}")
    shape = case.about["input_shape"]
    km.export(case.model, path, scheme="float", samples=case.one, input_shape=shape)
    return path


def litert_quantizer(case, path, static):
    source, target = _floats(case, path, ".tflite"), path.with_suffix(".tflite")
    made = quantizer.Quantizer(str(source))
    if static:
        made.load_quantization_recipe(recipe.static_wi8_ai8())
        update = qsv_utils.min_max_update
        seen = calibrator.Calibrator(str(source), qsv_update_func=update)
        samples = list(case.batches(_matched(case, _LiteRT(source).names)))
        seen.calibrate({"serving_default": samples}, made._recipe_manager)
        result = made.quantize(seen.get_model_qsvs(), enable_progress_report=False)
    else:
        made.load_quantization_recipe(recipe.dynamic_wi8_afp32())
        result = made.quantize(enable_progress_report=False)
    target.write_bytes(bytes(result.quantized_model))
    return target, {}


def onnxruntime_row(case, path, static):
    source, target = _floats(case, path, ".onnx"), path.with_suffix(".onnx")
    ready = path.with_name("ready.onnx")
    quant_pre_process(source, ready, skip_symbolic_shape=True)
    if not static:
        ort.quantize_dynamic(ready, target, per_channel=True)
        return target, {}
    batches = case.batches(_matched(case, _Onnx(ready).names))

    class Samples(ort.CalibrationDataReader):
        def get_next(self):
            return next(batches, None)

    ort.quantize_static(ready, target, Samples(), per_channel=True)
    return target, {}


ROWS = {
    "ours tflite int8-static": (ours, ".tflite", "int8-static"),
    "ours onnx int8-static": (ours, ".onnx", "int8-static"),
    "ours tflite int8-dynamic": (ours, ".tflite", "int8-dynamic"),
    "ours onnx int8-dynamic": (ours, ".onnx", "int8-dynamic"),
    "TFLite converter, int8": (tflite, True),
    "litert-quantizer, static": (litert_quantizer, True),
    "onnxruntime, static": (onnxruntime_row, True),
    "TFLite converter, dynamic": (tflite, False),
    "litert-quantizer, dynamic": (litert_quantizer, False),
    "onnxruntime, dynamic": (onnxruntime_row, False),
}


class _LiteRT:
    def __init__(self, path):
        self._interpreter = Interpreter(str(path), num_threads=1)
        self._run = self._interpreter.get_signature_runner()
        self._inputs = self._run.get_input_details()
        self._outputs = self._run.get_output_details()
        self.names = list(self._inputs)

    def encoded(self, arrays):
        return {k: encoded(v, self._inputs[k]) for k, v in arrays.items()}

    def __call__(self, arrays):
        return self._run(**arrays)

    def decoded(self, outputs):
        ((name, output),) = outputs.items()
        return decoded(output, self._outputs[name])


class _Onnx:
    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options)
        self.names = [each.name for each in self._session.get_inputs()]

    def encoded(self, arrays):
        return arrays

    def __call__(self, arrays):
        return self._session.run(None, arrays)

    def decoded(self, outputs):
        return outputs[0]


def _matched(case, names):
    """Return the names of a file's inputs by ours: equal, or in order."""
    own = list(case.calibration)
    if set(own) == set(names):
        return {name: name for name in own}
    assert len(own) == len(names) == 1, (own, names)
    return dict(zip(own, names, strict=True))


def measured(case, path):
    """Return the quality of a file and its milliseconds a sample."""
    file = {".tflite": _LiteRT, ".onnx": _Onnx}[path.suffix](path)
    names = _matched(case, file.names)
    count, taken, outputs = len(next(iter(case.test.values()))), [], []
    for n in range(count):
        one = {names[name]: array[n : n + 1] for name, array in case.test.items()}
        one = file.encoded(one)
        start = time.perf_counter()
        output = file(one)
        taken.append(time.perf_counter() - start)
        outputs.append(file.decoded(output))
    return quality(case, np.concatenate(outputs)) | {
        "ms": 1000 * statistics.median(taken)
    }


def quality(case, outputs):
    """Return the metric, that of the model with floats, and relative L2."""
    exact, metric = case.expected, case.about["metric"]
    facts = {"L2": float(np.linalg.norm(outputs - exact) / np.linalg.norm(exact))}
    if metric == "accuracy":
        counts = case.labels >= 0
        for key, found in (("metric", outputs), ("float", exact)):
            facts[key] = float((found.argmax(-1) == case.labels)[counts].mean())
        equal = outputs.argmax(-1) == exact.argmax(-1)
        facts["equal"] = float(equal[counts].mean())
    elif metric == "nearest":
        similar = [
            found @ found.T - 2 * np.eye(len(found)) for found in (outputs, exact)
        ]
        facts["equal"] = float(np.mean(similar[0].argmax(1) == similar[1].argmax(1)))
    elif metric == "r2":
        power = np.square(case.labels - case.labels.mean()).sum()
        for key, found in (("metric", outputs), ("float", exact)):
            facts[key] = float(1 - np.square(found - case.labels).sum() / power)
    return facts


def _memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def first_words(error):
    """Return the class and the begin of the text of an exception."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:400]


def _child(queue, task, *arguments):
    logging.disable(logging.INFO)
    try:
        queue.put(task(*arguments))
    except Exception as error:  # noqa: BLE001 - a failing rival is a row too
        trace = traceback.format_exc()[-3000:]
        queue.put({"error": first_words(error), "trace": trace})
    queue.close()
    queue.join_thread()
    os._exit(0)


def in_child(task, *arguments):
    """Return what a task returns in a child process, or why it did not."""
    queue = _FORK.Queue()
    child = _FORK.Process(target=_child, args=(queue, task, *arguments))
    child.start()
    end = time.monotonic() + MOST_SECONDS
    try:
        while queue.empty():
            if not child.is_alive() and queue.empty():
                return {"error": f"ended with code {child.exitcode}"}
            if time.monotonic() > end:
                return {"error": f"more than {MOST_SECONDS} s"}
            if _resident(child.pid) > MOST_MEGABYTES:
                return {"error": f"more than {MOST_MEGABYTES} MB"}
            time.sleep(0.1)
        return queue.get()
    finally:
        child.kill()
        child.join()


def _resident(pid):
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, IndexError):
        return 0
    return int(pages) * 4096 / 2**20


def trained(name, data, folder):
    """Train a network and store it."""
    start = time.perf_counter()
    keras.utils.set_random_seed(0)
    network = NETWORKS[name](data)
    folder.mkdir(parents=True, exist_ok=True)
    network.model.save(folder / "model.keras")
    arrays = {f"input {name}": array for name, array in network.inputs.items()}
    if network.labels is not None:
        arrays["labels"] = network.labels
    about = {
        "inputs": list(network.inputs),
        "metric": network.metric,
        "input_shape": network.input_shape,
        "calibration": network.calibration,
        "float bytes": 4 * network.model.count_params(),
    }
    np.savez(folder / "data.npz", expected=np.zeros(1), **arrays)
    (folder / "about.json").write_text(json.dumps(about))
    case = Case(folder)
    every = [keras.ops.convert_to_tensor(array) for array in case.test.values()]
    keyed = dict(zip(case.test, every, strict=True))
    found = []
    for start_at in range(0, len(every[0]), 16):
        few = {name: array[start_at : start_at + 16] for name, array in keyed.items()}
        given = few if len(few) > 1 else next(iter(few.values()))
        found.append(np.asarray(case.model(given, training=False)))
    case.expected = np.concatenate(found)
    np.savez(folder / "data.npz", expected=case.expected, **arrays)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, **quality(case, case.expected)}


def row(name, folder):
    """Return the facts of a row."""
    case = Case(folder)
    task, *arguments = ROWS[name]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "file")
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        start, used = time.perf_counter(), sum(os.times()[:4])
        path, facts = task(case, path, *arguments)
        facts["seconds"] = time.perf_counter() - start
        facts["CPU s"] = sum(os.times()[:4]) - used
        facts["peak MB"] = _memory("VmHWM") - before
        facts["bytes"] = path.stat().st_size
        return facts | measured(case, path)


COLUMNS = (
    "bytes",
    "metric",
    "float",
    "equal",
    "L2",
    "seconds",
    "CPU s",
    "peak MB",
    "ms",
)


def printed(name, facts):
    """Print a line of the Markdown table."""
    if "error" in facts:
        cells = [facts["error"].replace("|", "/")[:160], *[""] * (len(COLUMNS) + 1)]
    else:
        forms = {"bytes": ",.0f", "seconds": ".1f", "CPU s": ".1f"}
        forms |= {"peak MB": ".0f", "ms": ".3f"}
        cells = [
            format(facts[key], forms.get(key, ".4f")) if key in facts else ""
            for key in COLUMNS
        ]
        share = facts.get("integer share")
        cells.append("" if share is None else f"{100 * share:.1f} %")
        islands = facts.get("islands", {}).items()
        cells.append(", ".join(f"{count} {kind}" for kind, count in islands))
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def codes(folder):
    """Return how the file of an int8-static model in Keras differs from the model."""
    case = Case(folder)
    static = km.compress(
        case.model, km.Quantize("int8-static"), data=case.one, verbose=0
    )
    x = {name: array[:300] for name, array in case.test.items()}
    expected = static.model.predict(
        x if len(x) > 1 else next(iter(x.values())), verbose=0
    )
    with tempfile.TemporaryDirectory() as room:
        path = Path(room, "static.tflite")
        # Each decision of the file counts here, also where many differ.
        static.export(path, samples=case.one, tolerance=0.1)
        file = _LiteRT(path)
        names, outputs = _matched(case, file.names), []
        for n in range(len(expected)):
            one = {names[name]: array[n : n + 1] for name, array in x.items()}
            outputs.append(file.decoded(file(file.encoded(one))))
    ((scale, _),) = (each["quantization"] for each in file._outputs.values())
    outputs = np.concatenate(outputs)
    return {
        "within one step": float(np.mean(np.abs(outputs - expected) < 1.5 * scale)),
        "equal": float(np.mean(outputs.argmax(-1) == expected.argmax(-1))),
    }


def known_rows(results, name):
    """Return the rows of a network that are there from earlier runs."""
    lines = results.read_text().splitlines() if results.exists() else ()
    known = map(json.loads, lines)
    return {each["row"]: each for each in known if each["network"] == name}


def study(name, options):
    folder = Path(options.cache, name).absolute()
    results = Path(options.cache, "results.jsonl")
    print(f"\n### {name}\n", flush=True)
    if not (folder / "about.json").exists():
        print(in_child(trained, name, options.data, folder), "\n", flush=True)
    if not (folder / "about.json").exists():
        return
    done = known_rows(results, name)
    print(f"| file | {' | '.join(COLUMNS)} | integer share | islands |")
    print(f"|---|{'--:|' * len(COLUMNS)}--:|---|")
    for each in ROWS:
        if not any(part in each for part in options.rows.split(",")):
            continue
        if each not in done or options.again:
            done[each] = {"network": name, "row": each, **in_child(row, each, folder)}
            with results.open("a") as file:
                file.write(json.dumps(done[each]) + "\n")
        printed(each, done[each])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--rows", default="", help="parts of names, with commas")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--codes", action="store_true")
    options = parser.parse_args()
    for name in options.networks.split(","):
        if options.codes:
            print(name, in_child(codes, Path(options.cache, name).absolute()))
        else:
            study(name, options)


if __name__ == "__main__":
    main()
