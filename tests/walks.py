"""Length of the way of a model through kerasmem: `python -m tests.walks`.

A stay is one call of a function of kerasmem that receives the model, a copy, or the
path of its file. A copy is any `keras.Model` that was created during the walk. The
walks are five entry points on a CNN, on a task of KerasHub, and on a file where the
entry point takes a path. `tests/walks.toml` has the figures.

`python -m tests.walks --root FOLDER` records the package in another checkout. The walks
use only names that commit b220913 has as well.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np

import kerasmem as km

HOME = Path(km.__file__).parent


@cache
def _module(file: str) -> Path | None:
    """Return the path of a code's file below the package; None for any other code."""
    path = Path(file)  # "<string>" for methods of a dataclass
    return path.relative_to(HOME) if path.is_relative_to(HOME) else None


def _room(module: Path) -> str:
    depth = 2 if module.parts[0] == "extras" else 1
    return "/".join(module.parts[:-1][:depth])


def _caller(frame: types.FrameType) -> Path | None:
    """Return the file of the nearest function of kerasmem that a call comes from."""
    caller = frame.f_back
    while caller is not None and _module(caller.f_code.co_filename) is None:
        caller = caller.f_back
    return caller and _module(caller.f_code.co_filename)


def _is_start(frame: types.FrameType) -> bool:
    """Return False where a generator goes on, which Python reports as a call too."""
    return frame.f_code.co_code[frame.f_lasti + 1] & 3 == 0  # argument of RESUME


def _arguments(frame: types.FrameType) -> list[Any]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    rest, words = code.co_flags & 0x04 > 0, code.co_flags & 0x08 > 0
    names = [*code.co_varnames[: count + rest + words]]
    extra = [*frame.f_locals[names.pop()].values()] if words else []
    extra += frame.f_locals[names.pop()] if rest else ()
    return [*map(frame.f_locals.get, names), *extra]


class Walk:
    """The stays of one walk.

    Args:
        start: Model or path that the entry point receives. Models within this model
            are not followed.

    Attributes:
        stays: Names of the called functions, in the order of the calls.
        rooms: First folder below the package of each function.
        climbs: Number of stays in another room than the caller.
    """

    def __init__(self, start: Any) -> None:
        self._path = start if isinstance(start, Path) else None
        is_model = isinstance(start, keras.Model)
        self._parts = start._flatten_layers(include_self=False) if is_model else []
        self.stays: list[str] = []
        self.rooms: set[str] = set()
        self.climbs = 0

    @property
    def figures(self) -> dict[str, int]:
        """Counts by their names in `tests/walks.toml`."""
        return {
            "stays": len(self.stays),
            "functions": len(set(self.stays)),
            "rooms": len(self.rooms),
            "climbs": self.climbs,
        }

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Return a scope in which calls are recorded, on new threads as well."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # pyright: ignore[reportArgumentType]

    def _see(self, frame: types.FrameType, event: str, value: Any) -> None:
        del value
        if event != "call" or (module := _module(frame.f_code.co_filename)) is None:
            return
        if not (_is_start(frame) and any(map(self._is_followed, _arguments(frame)))):
            return
        name = module.with_suffix("").as_posix().replace("/", ".")
        self.stays.append(f"{name}.{frame.f_code.co_qualname}")
        self.rooms.add(_room(module))
        caller = _caller(frame)
        self.climbs += caller is not None and _room(caller) != _room(module)

    def _is_followed(self, value: Any) -> bool:
        if issubclass(type(value), keras.Model):
            return not any(value is part for part in self._parts)
        return isinstance(value, str | Path) and Path(value) == self._path


def cnn() -> Any:
    """Return a small compiled CNN."""
    layers = keras.layers
    inputs = x = keras.Input((8, 8, 3))
    for layer in (
        layers.Conv2D(8, 3, use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Conv2D(16, 3),
        layers.BatchNormalization(),
        layers.GlobalAveragePooling2D(),
        layers.Dense(3),
    ):
        x = layer(x)
    model = keras.Model(inputs, x)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def task() -> Any:
    """Return a small compiled classifier of KerasHub."""
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=40,
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=16,
    )
    model = keras_hub.models.BertTextClassifier(
        backbone, num_classes=3, preprocessor=None
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _data(model: Any) -> tuple[Any, np.ndarray]:
    """Return 8 samples of ones with labels."""

    def ones(tensor: Any) -> np.ndarray:
        return np.ones((8, *(size or 8 for size in tensor.shape[1:])), tensor.dtype)

    return keras.tree.map_structure(ones, model.input), np.ones(8, "int32")


def compress(source: Any, data: Any, folder: Path) -> None:
    """Apply two techniques and write the output to a file."""
    del data
    steps = [km.Prune(0.5), km.Quantize("int8")]
    km.compress(source, steps, output=folder / "small.keras", verbose=0)


def distill(student: Any, data: Any, folder: Path) -> None:
    """Train a student for one epoch of two batches."""
    del folder
    teacher = keras.models.clone_model(student)
    km.distill(teacher, student, data, batch_size=4, verbose=0)


def load_model(path: Path, data: Any, folder: Path) -> None:
    """Open a file."""
    del data, folder
    km.load_model(path)


def estimate_memory(source: Any, data: Any, folder: Path) -> None:
    """Estimate a training step."""
    del folder
    km.estimate_memory(source, 8, data=data[0])


def fit(model: Any, data: Any, folder: Path) -> None:
    """Train for one epoch of two batches."""
    del folder
    km.fit(model, *data, batch_size=4, verbose=0)


ENTRIES = {
    compress: ("cnn", "task", "cnn_file"),
    distill: ("cnn", "task"),
    load_model: ("cnn_file", "task_file"),
    estimate_memory: ("cnn", "task"),
    fit: ("cnn", "task"),
}
WALKS = {
    f"{entry.__name__}_{source}": (entry, source)
    for entry, sources in ENTRIES.items()
    for source in sources
}


def recorded(name: str) -> Walk:
    """Return a new walk by its name in `WALKS`."""
    entry, source = WALKS[name]
    keras.utils.set_random_seed(7)
    model = task() if source.startswith("task") else cnn()
    data = _data(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        if source.endswith("file"):
            model.save(path)
            model = path
        walk = Walk(model)
        with walk.recorded():
            entry(model, data, Path(folder))
    return walk


def monitored_step() -> list[str]:
    """Return functions that run in a compiled training step with `GradientMonitor`."""
    scope = ExitStack()
    functions: list[str] = []

    def see(frame: types.FrameType, event: str, value: Any) -> None:
        del value
        if event == "call" and _module(frame.f_code.co_filename) is not None:
            functions.append(frame.f_code.co_qualname)

    def begin(batch: int, logs: Any) -> None:
        del logs
        if batch == 1:  # the one before is compiled as well
            scope.callback(sys.setprofile, None)
            sys.setprofile(see)

    def end(batch: int, logs: Any) -> None:
        del batch, logs
        scope.close()

    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_begin=begin),
        km.callbacks.GradientMonitor(),
        keras.callbacks.LambdaCallback(on_train_batch_end=end),
    ]
    model = cnn()
    model.fit(*_data(model), batch_size=2, callbacks=callbacks, verbose=0)
    return functions


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="another checkout of kerasmem")
    parser.add_argument("names", nargs="*", help="walks to print stay by stay")
    options = parser.parse_args()
    if options.root:
        command = (sys.executable, "-P", __file__, *options.names)
        environment = {**os.environ, "PYTHONPATH": options.root}
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
    sys.stdout.write(f"{HOME}\n")
    for name in options.names or WALKS:
        walk = recorded(name)
        figures = ", ".join(f"{key} = {n}" for key, n in walk.figures.items())
        lines = [f"{name} = {{ {figures} }}", *(walk.stays if options.names else ())]
        sys.stdout.write("\n    ".join(lines) + "\n")


if __name__ == "__main__":
    _main()
