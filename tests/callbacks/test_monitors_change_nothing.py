"""A sample of `bench_monitors_change_nothing`: equal bits with and without monitors."""

import json
import os
import subprocess
import sys

import pytest

from tests.benchmarks.bench_monitors_change_nothing import (
    BACKENDS,
    DESIGNED,
    OPTIONS,
    Cell,
    cell_of,
    jit_cells,
    optimizer_names,
    plain_cells,
    report,
)

NESTEROV = {"momentum": 0.9, "nesterov": True}


@pytest.mark.one_backend
def test_every_optimizer_of_keras_is_compared_on_every_backend():
    cells = plain_cells()
    assert {"Adam", "Muon", "LossScaleOptimizer"} < set(optimizer_names())
    for backend in BACKENDS:
        names = {cell.optimizer for cell in cells if cell.backend == backend}
        assert names == set(optimizer_names())
    assert len({cell.name for cell in cells}) == len(cells)


@pytest.mark.one_backend
def test_the_design_has_every_pair_in_at_most_60_cells():
    cells = jit_cells()
    assert len(cells) <= 60
    for option in OPTIONS:
        seen = {(c.backend, c.jit, option in c.options) for c in cells}
        assert len(seen) == len(BACKENDS) * 2 * 2
        for other in OPTIONS:
            pairs = {(option in c.options, other in c.options) for c in cells}
            assert len(pairs) == (2 if other == option else 4)
    assert len({(c.optimizer, c.backend, c.jit) for c in cells}) == 6 * len(DESIGNED)


@pytest.mark.one_backend
def test_the_report_counts_cells_and_names_exceptions():
    cell = {"part": "jit", "backend": "jax", "optimizer": "SGD", "arguments": {}}
    cell |= {"jit": True, "options": [], "differences": {}, "repeatable": True}
    different = cell | {"equal": False, "differences": {"kernel": 0.5}}
    text = report([cell | {"equal": True}, different, different | {"error": "no"}])
    assert "jit jax jit=True: 1 of 3 cells equal" in text
    assert "largest difference 0.5" in text
    assert cell_of(cell) == Cell("jit", "jax", "SGD", {}, True)


def compared(cells):
    """Compare cells in a child process: deterministic operations stay switched on."""
    script = (
        "import json, sys, warnings\n"
        "from tests.benchmarks import bench_monitors_change_nothing as bench\n"
        "warnings.simplefilter('ignore')\n"
        "bench.make_deterministic(reorder=False)\n"
        "cells = [bench.cell_of(json.loads(name)) for name in sys.argv[1:]]\n"
        "print(json.dumps([bench.compare(cell) for cell in cells]))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, *[cell.name for cell in cells]],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


def test_a_sample_of_optimizers_ends_with_equal_bits(backend):
    sample = [
        Cell("optimizers", backend, "SGD", NESTEROV),
        Cell("optimizers", backend, "Nadam", {}, False, ("use_ema", "clipnorm")),
    ]
    if backend == "torch":
        sample.append(Cell("jit", backend, "Adam", {}, True, ("clipnorm",)))
    results = compared(sample)
    assert [result["differences"] for result in results] == [{}] * len(sample)
    assert all(result["has_norm"] for result in results)
