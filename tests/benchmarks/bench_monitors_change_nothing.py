"""Training with both monitors against the same training without, bit for bit.

    python -m tests.benchmarks.bench_monitors_change_nothing RESULTS.jsonl

Part `optimizers`: every optimizer of Keras on every backend, without jit. Part `jit`:
a pairwise design of optimizer, backend, jit, EMA, clipnorm, gradient accumulation and
loss scaling. A cell trains a small network twice for 12 steps with deterministic
operations. It compares weights and optimizer slots. If they differ, the plain training
runs a second time, to see that it repeats itself.

Each backend runs in a child process. A cell with a line in the results file is skipped,
so an interrupted run goes on with the next cell. It takes about 30 minutes on 2 cores,
half of it for torch with jit.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

BACKENDS = ("tensorflow", "jax", "torch")
STEPS, BATCH = 12, 8
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True}],
    "Adam": [{}, {"amsgrad": True}, {"weight_decay": 0.01}],
}
"""Arguments to try, by class name. Every other class: its defaults."""
OPTIONS = {
    "use_ema": {"use_ema": True, "ema_overwrite_frequency": 5},
    "clipnorm": {"clipnorm": 0.1},
    "accumulation": {"gradient_accumulation_steps": 2},
    "loss_scaling": {},
}
DESIGNED = (
    "SGD",
    "Adam",
    "Adafactor",
    "Lamb",
    "Muon",
    "Nadam",
    "RMSprop",
    "ScheduleFreeAdamW",
)
"""Optimizers of the part `jit`: those whose update steps differ most."""


@dataclass(frozen=True)
class Cell:
    """One training to compare.

    Args:
        part: `"optimizers"` or `"jit"`.
        backend: name of the Keras backend.
        optimizer: class name.
        arguments: arguments of the class beside the learning rate.
        jit: whether the step is compiled.
        options: names in `OPTIONS`.
    """

    part: str
    backend: str
    optimizer: str
    arguments: dict[str, Any] = field(default_factory=dict)
    jit: bool = False
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The key of the cell in the results file."""
        return json.dumps(asdict(self), sort_keys=True)


def optimizer_names() -> list[str]:
    """Return the names of all optimizers of Keras that can train a model."""
    import keras

    base = keras.optimizers.Optimizer
    return sorted(
        name
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    )


def plain_cells() -> list[Cell]:
    """Return every optimizer on every backend without jit."""
    return [
        Cell("optimizers", backend, name, arguments)
        for backend in BACKENDS
        for name in optimizer_names()
        for arguments in VARIANTS.get(name, [{}])
    ]


def jit_cells() -> list[Cell]:
    """Return a pairwise design: each pair of levels of two factors is in a cell."""
    compilers = list(product(BACKENDS, [True, False]))
    factors = [list(DESIGNED), compilers, *[[True, False]] * len(OPTIONS)]
    cells = []
    for name, (backend, jit), *are_on in pairwise(factors):
        options = [o for o, is_on in zip(OPTIONS, are_on, strict=True) if is_on]
        arguments = VARIANTS.get(name, [{}])[-1]
        cells.append(Cell("jit", backend, name, arguments, jit, tuple(options)))
    return cells


def pairwise(factors: list[list[Any]]) -> list[tuple[Any, ...]]:
    """Return rows in which each pair of levels of two factors occurs, greedily."""
    missing = {
        (i, a, j, b)
        for (i, left), (j, right) in combinations(enumerate(factors), 2)
        for a, b in product(left, right)
    }
    rows = list(product(*factors))
    design = []
    while missing:
        best = max(rows, key=lambda row: len(missing.intersection(_pairs(row))))
        missing.difference_update(_pairs(best))
        design.append(best)
    return design


def _pairs(row: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for (i, a), (j, b) in combinations(enumerate(row), 2):
        yield i, a, j, b


def build_optimizer(cell: Cell) -> Any:
    """Return the optimizer of a cell."""
    import keras

    arguments: dict[str, Any] = dict(cell.arguments)
    for option in cell.options:
        arguments |= OPTIONS[option]
    adam = keras.optimizers.Adam
    if cell.optimizer == "LossScaleOptimizer":
        return keras.optimizers.LossScaleOptimizer(adam(0.01))
    if cell.optimizer == "MultiOptimizer":
        sgd = keras.optimizers.SGD(0.01, momentum=0.9)
        return keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(adam(0.01), {".*bias": sgd})
        )
    optimizer = getattr(keras.optimizers, cell.optimizer)(0.01, **arguments)
    if "loss_scaling" in cell.options:
        # The first updates are skipped, until the scale is low enough.
        return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**126)
    return optimizer


def build_network() -> Any:
    """Return a network with a sparse gradient, BatchNormalization and Dropout."""
    import keras

    keras.utils.clear_session()  # the same paths in every cell
    keras.utils.set_random_seed(7)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(20, 5),
            layers.Conv1D(4, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.3),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def train(cell: Cell, callbacks: list[Any]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return weights and slots by their paths, and the keys of the history."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 20, (STEPS * BATCH, 6))
    y = rng.normal(size=(STEPS * BATCH, 3)).astype("float32")
    model = build_network()
    model.compile(build_optimizer(cell), "mse", jit_compile=cell.jit)
    history = model.fit(
        x, y, batch_size=BATCH, verbose=0, callbacks=callbacks, shuffle=False
    )
    from kerasmem.graph.values import to_numpy

    variables = [*model.variables, *model.optimizer.variables]
    values = {f"{i} {v.path}": to_numpy(v) for i, v in enumerate(variables)}
    return values, list(history.history)


def compare(cell: Cell) -> dict[str, Any]:
    """Return the line of a cell in the results file."""
    from kerasmem.callbacks import GradientMonitor, MemoryMonitor

    started = time.process_time()
    plain, _ = train(cell, [])
    watched, keys = train(cell, [MemoryMonitor(), GradientMonitor(every=5)])
    differences = differences_of(plain, watched)
    repeats = differences_of(plain, train(cell, [])[0]) if differences else {}
    return {
        **asdict(cell),
        "equal": not differences,
        "differences": differences,
        "repeatable": not repeats,
        "has_norm": "gradient_norm" in keys,
        "seconds": round(time.process_time() - started, 1),
    }


def differences_of(
    plain: dict[str, np.ndarray], watched: dict[str, np.ndarray]
) -> dict[str, float]:
    """Return the largest difference of each variable that differs in any bit."""
    if list(plain) != list(watched):
        return {"variables": float("inf")}
    return {
        name: float(np.max(np.abs(plain[name] - watched[name])))
        for name in plain
        if plain[name].tobytes() != watched[name].tobytes()
    }


def make_deterministic(*, reorder: bool = True) -> None:
    """Switch on the deterministic operations of the backend that runs.

    Args:
        reorder: Whether TensorFlow's graph optimizer may reorder products.
    """
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
        if not reorder:
            options = {"arithmetic_optimization": False}
            tf.config.optimizer.set_experimental_options(options)
    elif keras.backend.backend() == "torch":
        import torch

        torch.use_deterministic_algorithms(True)


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a results file; a torn last line is left out."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = []
    for line in lines:
        try:
            results.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return results


def cell_of(result: dict[str, Any]) -> Cell:
    """Return the cell of a line."""
    values = {name: result[name] for name in Cell.__dataclass_fields__}
    return Cell(**values | {"options": tuple(values["options"])})


def run_child(backend: str, path: Path, deadline: float) -> None:
    """Run the missing cells of the running backend."""
    warnings.simplefilter("ignore")
    make_deterministic()
    finished = {cell_of(result).name for result in read_results(path)}
    for cell in [*plain_cells(), *jit_cells()]:
        if cell.backend != backend or cell.name in finished:
            continue
        if time.time() > deadline:
            return
        try:
            result = compare(cell)
        except Exception as error:  # noqa: BLE001 - the other cells run
            result = asdict(cell) | {"error": f"{type(error).__name__}: {error}"[:400]}
        with path.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)


def report(results: list[dict[str, Any]]) -> str:
    """Return the counts by part, backend and jit, and a line per exception."""
    lines = []
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for each in results:
        key = each["part"], each["backend"], each["jit"]
        groups.setdefault(key, []).append(each)
    for (part, backend, jit), rows in groups.items():
        equal = sum(row.get("equal", False) for row in rows)
        lines.append(f"{part} {backend} jit={jit}: {equal} of {len(rows)} cells equal")
    for each in results:
        if not each.get("equal", False):
            largest = max(each.get("differences", {}).values(), default=None)
            lines.append(
                f"not equal: {cell_of(each).name}, largest difference {largest}, "
                f"repeatable {each.get('repeatable')}, error {each.get('error')}"
            )
    return "\n".join(lines)


def main() -> None:
    """Run the missing cells, a child process per backend, and print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.deadline is not None:
        run_child(options.backend, options.results, options.deadline)
        return
    deadline = time.time() + 60 * options.minutes
    for backend in [options.backend] if options.backend else BACKENDS:
        module = "tests.benchmarks.bench_monitors_change_nothing"
        command = [sys.executable, "-m", module, str(options.results)]
        command += ["--backend", backend, "--deadline", str(deadline)]
        environment = os.environ | {"KERAS_BACKEND": backend}
        subprocess.run(command, env=environment, check=False)
    print(report(read_results(options.results)))


if __name__ == "__main__":
    main()
