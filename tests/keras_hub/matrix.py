"""What works with which family of KerasHub: `python -m tests.keras_hub.matrix`.

Every cell is "works", where a check of this file says so, or the error of ours that
tells why not. The command prints the table into the documentation.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import KerasMemError
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from tests.keras_hub.additions import lora, opened, preset
from tests.keras_hub.families import (
    FAMILIES,
    Tagger,
    apart,
    samples,
    shapes,
    subclassed,
    targets,
)
from tests.keras_hub.rows import Rows
from tests.low_rank import low_rank
from tests.masked import called, masked, randomized
from tests.timelines import assert_adds_up, made_in_window, share_known

PAGE = Path(__file__).parents[2] / "docs" / "keras_hub.md"
WORKS = "works"
_STEP = 0.01
JIT = keras.backend.backend() == "jax"
_LOST_BY_KERAS_HUB = {
    "DINOV2": (
        "works, but trained positions: KerasHub's layer saves them only if their sum "
        "has grown"
    )
}
_INPUTS, _TOKENS = "x.npz", "int8.tokens.npz"


class Subject:
    """A model of one family, with what is known of it before anything is done."""

    def __init__(self, family: str, folder: Path) -> None:
        keras.utils.set_random_seed(1)
        self.model = (FAMILIES | {"Subclassed": subclassed})[family]()
        self.x = samples(self.model)
        self.y = targets(self.model, self.x)
        self.plain = called(self.model, self.x)
        self.trained = clone(self.model)
        self.step = stepped(self.trained, self.x, self.y, run_eagerly=True)
        self.folder = folder
        np.savez(
            folder / _INPUTS, **(self.x if isinstance(self.x, dict) else {"": self.x})
        )

    def saved(self, name: str, made: Any) -> list[np.ndarray]:
        """Save a model, or the result that has it, for the process that opens them.

        Returns:
            What it answers.
        """
        found = called(
            made.model if isinstance(made, km.CompressionResult) else made, self.x
        )
        np.savez(self.folder / f"{name}.npz", *found)
        path = self.folder / f"{name}.keras"
        if isinstance(made, km.CompressionResult):
            made.save(path)  # the file that was written and opened for the report
        else:
            km.save_model(made, path)
        return found


def compiled(model: Any, **options: Any) -> Any:
    model.compile(
        keras.optimizers.SGD(_STEP), "mse", metrics=[], weighted_metrics=[], **options
    )
    return model


@contextmanager
def _put_back(model: Any) -> Iterator[list[np.ndarray]]:
    """Return a scope that leaves all variables as they were; those that are trained."""
    kept = [(v, to_numpy(v)) for v in model.variables]  # those of dropout, too
    try:
        yield [to_numpy(v) for v in model.trainable_variables]
    finally:
        for variable, value in kept:
            variable.assign(value)


def _moved(model: Any, before: list[np.ndarray]) -> list[np.ndarray]:
    return [
        to_numpy(v) - old
        for v, old in zip(model.trainable_variables, before, strict=True)
    ]


# Each check of a feature leaves the subject's models with the weights that they had.


def monitors(s: Subject) -> None:
    """The gradient is as long as a step of plain descent, divided by its rate."""
    model = compiled(s.trained, jit_compile=JIT)
    gradients, memory = km.callbacks.GradientMonitor(), km.callbacks.MemoryMonitor()
    with _put_back(model) as before, _no_dropout():
        model.fit(s.x, s.y, batch_size=2, verbose=0, callbacks=[gradients, memory])
        moved = _moved(model, before)
    length = np.sqrt(sum(float(np.square(each).sum()) for each in moved))
    np.testing.assert_allclose(gradients.records[0].norm, length / _STEP, rtol=1e-2)
    assert memory.records[0].host.peak_bytes > 0


def timeline(s: Subject) -> None:
    """Live blocks add up to the allocator's figure; almost every one has a layer."""
    model = compiled(s.trained, jit_compile=JIT)
    seen = km.callbacks.MemoryTimeline(steps=range(1, 2))
    with _put_back(model):
        model.fit(s.x, s.y, batch_size=1, verbose=0, callbacks=[seen])
    (found,) = seen.timelines
    assert_adds_up(found)
    assert share_known(made_in_window(found)) > 0.95


def estimate(s: Subject) -> None:
    """It has weights, gradients and both slots of Adam, and grows with the batch."""
    given = {"optimizer": "adam", "input_shape": shapes(s.trained, s.x)}
    one, more = (
        km.estimate_memory(s.trained, n, method="analytic", **given) for n in (2, 64)
    )
    assert 3 * 4 * s.trained.count_params() < one.peak_bytes < more.peak_bytes


def int8(s: Subject) -> None:
    """Outputs are off by at most 3 %."""
    result = km.compress(s.model, km.Quantize("int8"))
    respects_padding(result.model, s.x)
    assert apart(s.saved("int8", result), s.plain) < 0.03
    if hasattr(s.model, "generate"):
        np.savez(s.folder / _TOKENS, *generated(result.model, s.x))


def int4(s: Subject) -> None:
    """Outputs are those of the floats that the weights stand for."""
    result = km.compress(
        s.model, km.Quantize("int4", granularity="group", group_size=16)
    )
    floats = called(km.dequantize(result.model), s.x)
    assert apart(s.saved("int4", result), floats) < 1e-4


def int8_dynamic(s: Subject) -> None:
    """Outputs are off by at most 5 %."""
    result = km.compress(s.model, km.Quantize("int8-dynamic"))
    respects_padding(result.model, s.x)
    assert apart(s.saved("int8-dynamic", result), s.plain) < 0.05


def prune(s: Subject) -> None:
    """Of each pruned weight the smaller half is zero, the rest as it was."""
    result = km.compress(s.model, km.Prune(0.5, scope="layer"))
    s.saved("prune", result)
    pruned = 0
    for before, after in zip(s.model.weights, result.model.weights, strict=True):
        old, new = to_numpy(before), to_numpy(after)
        gone = (new == 0) & (old != 0)
        np.testing.assert_array_equal(new[~gone], old[~gone])
        if gone.any():
            pruned += 1
            assert gone.mean() > 0.45
            assert np.abs(old[gone]).max() <= np.abs(old[~gone]).min()
    assert pruned


def factorize(s: Subject) -> None:
    """Outputs and parameters are those of kernels of a quarter of their rank."""
    result = km.compress(s.model, km.Factorize(0.25))
    expected, size = low_rank(s.model, 0.25)
    assert result.model.count_params() == size < s.model.count_params()
    assert apart(s.saved("factorize", result), called(expected, s.x)) < 1e-4


def heads_and_width(s: Subject) -> str | None:
    """Half as many of each; outputs and tokens are those with the others zero."""
    model = randomized(clone(s.model))
    small, _ = apply_technique(km.PruneChannels(0.5), model)
    s.saved("narrow", small)
    assert small.count_params() < model.count_params()
    if type(small) is not type(model):
        return f"works, as a {type(small).__name__} model"
    expected = masked(model, small, clone(model))
    assert apart(called(small, s.x), called(expected, s.x)) < 1e-5
    if hasattr(model, "generate"):
        pairs = zip(generated(small, s.x), generated(expected, s.x), strict=True)
        assert all(np.array_equal(now, then) for now, then in pairs)
    return None


def student(s: Subject) -> None:
    """Of three layers two stay, in order, each with all of its weights."""
    config = json.loads(json.dumps(s.model.get_config()))
    deeper = _three_layers(config)
    teacher = s.model  # of which the error tells, where no argument counts layers
    if deeper != config:
        teacher = randomized(type(s.model).from_config(deeper))
    made = km.make_student(teacher, depth=0.67)
    s.saved("student", made)
    assert type(made) is type(teacher)
    values = [to_numpy(weight) for weight in teacher.weights]
    found = [
        [n for n, value in enumerate(values) if np.array_equal(to_numpy(w), value)]
        for w in made.weights
    ]
    places = [place for (place,) in found]
    assert places == sorted(set(places))
    gone = [teacher.weights[n] for n in {*range(len(values))} - {*places}]
    left = sum(int(np.prod(w.shape)) for w in gone)
    assert teacher.count_params() - made.count_params() == left


def _three_layers(config: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _three_layers(value)
        if isinstance(value, dict)
        else (3 if name == "num_layers" else value)
        for name, value in config.items()
    }


def distill(s: Subject) -> None:
    """The distance of a student that has forgotten something to its teacher falls."""
    student = s.trained
    with _put_back(student) as weights, _no_dropout():
        for variable, weight in zip(student.trainable_variables, weights, strict=True):
            variable.assign(0.9 * weight)
        taught = km.distill(
            s.model,
            compiled(student, jit_compile=False),
            s.x,
            hard_weight=0,
            optimizer=keras.optimizers.SGD(1e-3, global_clipnorm=1.0),
            epochs=3,
            verbose=0,
            seed=0,
        )
    assert type(taught) is type(s.model)
    s.saved("distill", taught)
    # Routers of experts add a loss of their own, and outweigh it.
    first, *_, last = taught.history.history["loss"]
    assert last < first


@contextmanager
def _no_dropout() -> Iterator[None]:
    """Return a scope in which every layer of the kind hands its inputs on."""

    def call(_: Any, inputs: Any, training: bool = False) -> Any:
        return inputs

    kept, keras.layers.Dropout.call = keras.layers.Dropout.call, call
    try:
        yield
    finally:
        keras.layers.Dropout.call = kept


def rematerialize(s: Subject) -> None:
    """The class and the training stay."""
    given = shapes(s.model, s.x)
    lean = km.rematerialize(s.trained, segments=2, input_shape=given)
    _trains_alike(s, lean, share=1e-3)


def compress_activations(s: Subject) -> None:
    """The class stays; the training does but for rounding to eight bits."""
    _trains_alike(s, km.compress_activations(s.trained), share=0.2)


def _trains_alike(s: Subject, lean: Any, share: float) -> None:
    assert type(lean) is type(s.model)
    assert apart(called(lean, s.x), s.plain) < 1e-5
    assert apart(stepped(lean, s.x, s.y), s.step) < share


def stepped(model: Any, x: Any, y: Any, **options: Any) -> list[np.ndarray]:
    """Return what one step of training adds to every variable; leave it as it was."""
    with _put_back(model) as before:
        keras.utils.set_random_seed(1)  # torch draws from numbers that all models share
        compiled(model, jit_compile=False, **options).train_on_batch(x, y)
        return _moved(model, before)


def respects_padding(model: Any, x: Any) -> None:
    """Look whether other tokens in the padding change what stands before it."""
    masks = (
        [x[k] for k in x if k.endswith("padding_mask")] if isinstance(x, dict) else []
    )
    if not masks:
        return
    mask = masks[0]  # samples end in the same place in both sequences
    other = {
        name: np.where(mask, values, (values + 7) % 40)
        if name.endswith("token_ids")
        else values
        for name, values in x.items()
    }
    assert any(not np.array_equal(other[name], x[name]) for name in x)
    ways = [called(model, tokens) for tokens in (other, x)]
    read = [
        [y[mask] if y.shape[:2] == mask.shape else y for y in found] for found in ways
    ]
    assert apart(*read) < 1e-5


def generated(model: Any, x: Any) -> list[np.ndarray]:
    """Return the tokens that a model writes behind the shorter prompts."""
    model.compile(run_eagerly=True, sampler="greedy")
    # `generate` itself trips over some families' answers where no preprocessor is.
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    found = model.make_generate_function()(tensors, stop_token_ids=None)
    return [to_numpy(y) for y in keras.tree.flatten(found) if y is not None]


_CHECKS: dict[str, Callable[[Subject], str | None]] = {
    "monitors": monitors,
    "timeline": timeline,
    "estimate": estimate,
    "int8": int8,
    "int4": int4,
    "int8-dynamic": int8_dynamic,
    "prune": prune,
    "factorize": factorize,
    "heads/width": heads_and_width,
    "student": student,
    "distill": distill,
    "rematerialize": rematerialize,
    "compress_activations": compress_activations,
    "lora": lora,
    "preset": preset,
}
"""What is looked at where a model is made; the rest where its files are opened."""

COLUMNS = (*_CHECKS, "reload", "generate")


def cells(family: str, folder: Path) -> dict[str, str]:
    """Return the cells of a family that need no other process; leave its files.

    Raises:
        AssertionError: if something works otherwise than it should.
        Exception: whatever is not an error of ours.
    """
    subject = Subject(family, folder)
    return {name: _cell(check, subject) for name, check in _CHECKS.items()}


def reopened(family: str, folder: Path) -> dict[str, str]:
    """Return whether files give what they gave where they were written, to 1e-5.

    Raises:
        AssertionError: if they do not, or tokens are not the same.
    """
    x = _arrays(folder / _INPUTS)
    x = x.get("", x)
    reload, generate = WORKS, "-"
    files = [*folder.glob("*.keras"), *folder.glob("preset")]
    assert files
    for path in files:
        model = opened(path, {"Tagger": Tagger})
        expected = [*_arrays(path.with_suffix(".npz")).values()]
        if apart(called(model, x), expected) > 1e-5:
            assert path.stem in ("distill", "narrow", "student"), path.name
            reload = _LOST_BY_KERAS_HUB[family]
        tokens = folder / _TOKENS
        if path.stem == "int8" and tokens.exists():
            pairs = zip(generated(model, x), _arrays(tokens).values(), strict=True)
            assert all(np.array_equal(now, before) for now, before in pairs)
            generate = WORKS
    return {"reload": reload, "generate": generate}


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _cell(check: Callable[[Subject], str | None], subject: Subject) -> str:
    try:
        return check(subject) or WORKS
    except KerasMemError as error:
        sentence = re.split(r"(?<=\.)\s", str(error))[0]
        return f"{type(error).__name__}: {sentence}"


def table(rows: dict[str, dict[str, str]]) -> str:
    """Return the table in Markdown."""
    head = ["family", *(f"`{name}`" for name in COLUMNS)]
    lines = [head, ["---"] * len(head)]
    lines += [[name, *(cells[c] for c in COLUMNS)] for name, cells in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def documented() -> dict[str, dict[str, str]]:
    """Return the rows that the documentation has."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {name: dict(zip(COLUMNS, found, strict=True)) for name, *found in cells[2:]}


def main() -> None:
    """Look at every family, or at those named, and print their rows into the page."""
    rows, found = Rows(), documented()
    for family in sys.argv[1:] or [*FAMILIES, "Subclassed"]:
        found[family] = rows.row(family)
        before, _, after = PAGE.read_text().partition("| family |")
        rest = re.sub(r"\A.*\n(\|.*\n)*", "", after)
        PAGE.write_text(f"{before}{table(found)}\n{rest}")
    rows.close()


if __name__ == "__main__":
    main()
