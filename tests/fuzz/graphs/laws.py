"""What must hold of every model, each with how often it is drawn."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import kerasmem as km
from kerasmem.compression.channels import apply as channels
from kerasmem.compression.recipe import apply_technique
from kerasmem.graph.layers import weights
from kerasmem.graph.values import to_numpy
from tests.fuzz.graphs.case import Case, UnfitError, WrongValueError, flat_weights
from tests.fuzz.graphs.models import outputs
from tests.models import in_place


def _channels(case: Case) -> None:
    """What is left computes what the original does with these channels silenced."""
    draw, seen = case.draw, []
    choice = km.PruneChannels(
        draw.choice((0.2, 0.5, 0.5, 0.8)),
        scope=draw.choice(("layer", "layer", "global", "isomorphic")),
        criterion=draw.choice(("random", "random", "l2", "group")),
        round_to=draw.choice((1, 1, 1, 2)),
        verify=draw.flag(0.7),
        seed=draw.size(0, 9),
    )
    rebuild = channels.kept_channels

    def remembering(graph, *rest):
        seen.append((graph, rebuild(graph, *rest)))
        return seen[-1][1]

    channels.kept_channels = remembering
    try:
        smaller, _ = apply_technique(choice, case.model)
    finally:
        channels.kept_channels = rebuild
    (graph, kept) = seen[-1]
    if _shapes(smaller.output_shape) != _shapes(graph.output_shape):
        raise WrongValueError(f"shape {smaller.output_shape} {graph.output_shape}")
    size = draw.size(2, 5)
    with _silenced(graph, kept):
        expected = {n: outputs(graph, case.batch(n)) for n in (1, size)}
        noise = case.noise_of(graph, case.batch(size), expected[size])
    for n, y in expected.items():
        if noise < 0.1:
            found = outputs(smaller, case.batch(n))
            case.check_equal(y, found, 3 * noise, f"batch of {n}")


def _shapes(shape: Any) -> list[Any]:
    return keras.tree.flatten(keras.tree.map_structure(lambda n: n, shape))


class _silenced:  # noqa: N801 - a scope
    """A scope in which a model's removed channels are zero."""

    def __init__(self, model, kept):
        self.places = [v for v in model.weights if kept.silences(v)]
        self.kept = kept

    def __enter__(self):
        self.before = [to_numpy(v) for v in self.places]
        for v, value in zip(self.places, self.before, strict=True):
            v.assign(self.kept.silence(v, value))

    def __exit__(self, *_):
        for v, value in zip(self.places, self.before, strict=True):
            v.assign(value)


def _prune(case: Case) -> None:
    """So many weights as are asked for are zero, and the others are as they were."""
    draw = case.draw
    sparsity = draw.choice((0.3, 0.5, 0.9))
    scope = draw.choice(("layer", "global"))
    copy = case.model
    before = flat_weights(copy)
    changes = in_place(km.Prune(sparsity, scope=scope), copy)
    _check_account(copy, changes)
    changed = {c.weight for c in changes if c.changed}
    zeros = entries = 0
    for weight, old in zip(weights(copy), _in_order(copy, before), strict=True):
        new = to_numpy(weight.variable)
        if weight.path not in changed:
            if not np.array_equal(old, new):
                raise WrongValueError(f"{weight.path} changed without a word")
            continue
        if not np.array_equal(old[new != 0], new[new != 0]):
            raise WrongValueError(f"{weight.path}: what stays is not what it was")
        gone = int((new == 0).sum())
        zeros, entries = zeros + gone, entries + new.size
        if scope == "layer" and abs(gone - sparsity * new.size) > 1:
            raise WrongValueError(f"{weight.path}: {gone} zeros of {new.size}")
    if scope == "global" and abs(zeros - sparsity * entries) > 1 + len(changed):
        raise WrongValueError(f"{zeros} zeros of {entries}, asked for {sparsity}")
    outputs(copy, case.x)


def _in_order(model: Any, values: list[np.ndarray]) -> list[np.ndarray]:
    by_id = {id(v): value for v, value in zip(model.weights, values, strict=True)}
    return [by_id[id(w.variable)] for w in weights(model)]


def _check_account(model: Any, changes: Any) -> None:
    """Every weight is told of once; one that is new may be, too."""
    told = sorted(change.weight for change in changes)
    there = sorted(weight.path for weight in weights(model))
    missing = [path for path in there if told.count(path) < there.count(path)]
    if missing or len(told) > 2 * len(there):
        raise WrongValueError(f"{len(told)} of {len(there)} weights, without {missing}")


def _cluster(case: Case) -> None:
    """A weight takes so many values, its zeros stay, and others are as they were."""
    n = case.draw.choice((2, 4, 16))
    copy = case.model
    before = flat_weights(copy)
    start = case.draw.choice(("kmeans++", "linear", "density"))
    changes = in_place(km.Cluster(n, start=start), copy)
    _check_account(copy, changes)
    changed = {c.weight for c in changes if c.changed}
    for weight, old in zip(weights(copy), _in_order(copy, before), strict=True):
        new = to_numpy(weight.variable)
        if weight.path in changed:
            if len(np.unique(new)) > n:
                raise WrongValueError(f"{weight.path}: {len(np.unique(new))} values")
            if new[old == 0].any() or np.abs(new).max() > np.abs(old).max() * 1.001:
                raise WrongValueError(f"{weight.path}: zeros or the range are lost")
        elif not np.array_equal(old, new):
            raise WrongValueError(f"{weight.path} changed without a word")
    outputs(copy, case.x)


def _factorize(case: Case) -> None:
    """Kernels of rank one are the product of thin ones exactly."""
    random = np.random.default_rng(case.draw.size(0, 99))
    for weight in weights(case.model):
        v = weight.variable
        if len(v.shape) > 1 and keras.backend.is_float_dtype(v.dtype):
            value = np.ones(())
            for size in v.shape:
                value = value[..., None] * random.uniform(0.5, 1.2, size)
            value = value / np.sqrt(max(value.size / value.shape[-1], 1))
            v.assign(value.astype("float32"))
    method = case.draw.choice(("spatial", "channel"))
    choice = km.Factorize(case.draw.choice((0.01, 0.3, 0.6)), method=method)
    expected = outputs(case.model, case.x)
    noise = case.noise_of(case.model, case.x, expected)
    smaller, changes = apply_technique(choice, case.model)
    _check_account(case.model, changes)
    if noise < 0.1:
        case.check_equal(expected, outputs(smaller, case.x), noise, method)


def _fold(case: Case) -> None:
    """The same without BatchNormalization."""
    folded, changes = apply_technique(km.FoldBatchNorm(), case.model)
    _check_account(case.model, changes)
    case.check_equal(case.y, outputs(folded, case.x), case.noise, "folded")


def _equalize(case: Case) -> None:
    in_place(km.Equalize(), case.model)
    case.check_equal(case.y, outputs(case.model, case.x), case.noise, "equalized")


def _estimate(case: Case) -> None:
    """Figures are finite, in order, and no less than what is surely there."""
    draw = case.draw
    settings = {
        "backend": draw.choice(("tensorflow", "jax", "torch")),
        "training": draw.flag(),
        "device": draw.choice(("gpu", "cpu")),
        "optimizer": draw.choice(("adam", "sgd")),
        "input_shape": _lengths(case),
    }
    small, large = (
        km.estimate_memory(case.model, size, method="analytic", **settings)
        for size in (2, 64)
    )
    parameters = sum(4 * int(np.prod(v.shape)) for v in case.model.trainable_variables)
    for found in (small, large):
        figures = (found.low_bytes, found.peak_bytes, found.high_bytes)
        if not all(isinstance(n, int) and 0 < n < 1 << 40 for n in figures):
            raise WrongValueError(f"{figures} {settings}")
        if not parameters <= found.high_bytes or sorted(figures) != list(figures):
            raise WrongValueError(f"{figures}, {parameters} of weights {settings}")
    if large.peak_bytes < small.peak_bytes:
        raise WrongValueError(
            f"64: {large.peak_bytes} 2: {small.peak_bytes} {settings}"
        )


def _lengths(case: Case) -> Any:
    """Return the shapes of inputs, open lengths as they are in the samples."""
    if isinstance(case.x, dict):
        shapes = {name: array.shape[1:] for name, array in case.x.items()}
    else:
        shapes = [array.shape[1:] for array in keras.tree.flatten(case.x)]
    return keras.tree.flatten(case.x)[0].shape[1:] if len(shapes) == 1 else shapes


def _rematerialize(case: Case) -> None:
    """A step leads to the same weights, and inference is as ever."""
    model = case.model
    model.compile(keras.optimizers.SGD(0.01), "mse")
    segments = case.draw.choice((2, 3))
    lean = km.rematerialize(model, segments=segments, input_shape=_lengths(case))
    case.check_equal(case.y, outputs(lean, case.x), case.noise, "inference")
    target = keras.tree.map_structure(
        lambda y: np.zeros(y.shape, "float32"),
        model(keras.tree.map_structure(keras.ops.convert_to_tensor, case.x)),
    )
    # On torch, dropout without a seed draws from the process's generator.
    keras.utils.set_random_seed(7)
    try:
        model.train_on_batch(case.x, target)
    except Exception as error:  # Keras cannot add losses of two types
        raise UnfitError(f"training: {type(error).__name__}") from error
    keras.utils.set_random_seed(7)
    lean.train_on_batch(case.x, target)
    after = [flat_weights(each) for each in (model, lean)]
    if not all(np.isfinite(weight).all() for weight in after[0]):
        raise UnfitError("a step leaves NaN")
    after = [[a.astype("float64") for a in each] for each in after]
    # Gradients are less exact than answers: what is large cancels in them.
    case.check_equal(*after, max(case.noise, 1e-3 / 30), "step")


def _save(case: Case) -> None:
    """What is saved is what was there, bit by bit."""
    draw = case.draw
    coding = draw.choice(("deflate", "entropy", "stored"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        km.save_model(case.model, path, coding=coding)
        mapped = coding == "stored" and draw.flag()
        found = km.load_model(path, memory_map=mapped)
        for old, new in zip(flat_weights(case.model), flat_weights(found), strict=True):
            if not np.array_equal(old, new):
                raise WrongValueError(f"{coding}, mapped {mapped}: another weight")
        case.check_equal(case.y, outputs(found, case.x), case.noise / 100, coding)


def _quantize(scheme: str) -> Callable[[Case], None]:
    def law(case: Case) -> None:
        from tests.fuzz.graphs.rounding import check_quantized

        check_quantized(case, scheme)

    return law


def _compress(case: Case) -> None:
    """The one verb, with several steps, through a file and back."""
    draw = case.draw
    steps = draw.sample(
        [
            km.Prune(0.5),
            km.PruneChannels(0.3),
            km.FoldBatchNorm(),
            km.Cluster(8),
            km.Factorize(0.3),
        ],
        draw.size(1, 2),
    ) + draw.sample(
        [km.Quantize("int8"), km.Quantize("float16"), km.Quantize("int4")], 1
    )
    result = km.compress(case.model, steps, verbose=0)
    expected = outputs(result.model, case.x)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        result.save(path)
        found = outputs(km.load_model(path), case.x)
        case.check_equal(expected, found, 0.0, "reloaded")
        report = result.report.after
        if report.file_bytes != path.stat().st_size:
            raise WrongValueError(f"{report.file_bytes} {path.stat().st_size} bytes")


IN_PLACE = (
    "prune",
    "cluster",
    "equalize",
    "factorize",
    "rematerialize",
    "int8",
    "int4",
    "float16",
)
"""Laws that change the model that they are given; so do all that begin so."""

OF_GRAPHS = ("estimate", "rematerialize", "equalize", "int8-static", "factorize")
"""Laws that models of a class of their own are mostly spared: all are refused."""

LAWS: dict[str, tuple[int, Callable[[Case], None]]] = {
    "channels": (34, _channels),
    "prune": (5, _prune),
    "cluster": (4, _cluster),
    "factorize": (6, _factorize),
    "fold": (6, _fold),
    "equalize": (3, _equalize),
    "estimate": (6, _estimate),
    "rematerialize": (4, _rematerialize),
    "save": (8, _save),
    "compress": (4, _compress),
    "int8": (6, _quantize("int8")),
    "int8-dynamic": (6, _quantize("int8-dynamic")),
    "int8-static": (5, _quantize("int8-static")),
    "int4": (3, _quantize("int4")),
    "float16": (2, _quantize("float16")),
}
"""Share and law."""
