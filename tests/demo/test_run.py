"""The demo does its whole job on a handful of images."""

import csv
import io
from itertools import pairwise

import keras
import numpy as np
import pytest
from rich.console import Console

from kerasmem.demo.recipe import (
    STUDENT_WIDTHS,
    TEACHER_WIDTHS,
    Recipe,
    residual_network,
)
from kerasmem.demo.run import run_demo

TINY = Recipe(
    widths=(4, 8),
    student_widths=(2, 4),
    epochs=2,
    fine_tune_epochs=1,
    student_epochs=1,
    batch_size=16,
    student_batch_size=16,
)
FILES = (
    "original.keras",
    "compressed.keras",
    "student.keras",
    "epochs.csv",
    "report.html",
    "training.html",
)


@pytest.fixture
def images(monkeypatch):
    """Two classes that any network tells apart: bright above, or bright below."""
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    x = rng.integers(0, 60, (80, 8, 8))
    x[y == 0, :4] += 180
    x[y == 1, 4:] += 180
    x = x.astype("uint8")
    splits = (x[:64], y[:64]), (x[64:], y[64:])
    monkeypatch.setattr("kerasmem.demo.run.mirrored_demo_data", lambda: splits)


@pytest.mark.usefixtures("images")
def test_the_demo_writes_what_it_measured(tmp_path, backend):
    if backend == "jax":
        return  # the two others do not compile each of its steps
    out, progress = tmp_path / "new" / "out", io.StringIO()
    record = run_demo(out, recipe=TINY, console=Console(file=progress))

    assert list(record.models) == ["original", "compressed", "student"]
    for name, figures in record.models.items():
        assert figures.file_bytes == (out / f"{name}.keras").stat().st_size
        assert 0 <= figures.metrics["accuracy"] <= 1
        assert figures.latency_ms > 0
    original, compressed, student = record.models.values()
    assert original.nonzero == original.parameters == compressed.parameters
    assert compressed.nonzero < 0.5 * original.nonzero
    assert student.parameters < original.parameters
    opened = keras.models.load_model(out / "student.keras")  # by stock Keras
    assert opened.count_params() == student.parameters
    assert record.samples == 16

    assert {out / name for name in FILES} == set(out.iterdir())
    assert record.files == tuple(str(out / name) for name in FILES)
    rows = list(csv.DictReader((out / "epochs.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert all(float(row["gradient_norm"]) > 0 for row in rows)
    for stage in ("training", "fine-tuning", "distilling"):
        assert stage in progress.getvalue()
        assert record.seconds[stage] > 0


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 3)])
def test_the_network_takes_images_with_and_without_channels(shape):
    network = residual_network(shape, 10, (2, 2, 4))
    assert network(np.zeros((2, *shape), "uint8")).shape == (2, 10)


def test_the_student_has_less_than_a_tenth_of_the_parameters():
    def kernels(widths):
        """Parameters of the 3x3 convolutions, which are nearly all."""
        return sum(9 * out * (into + out) for into, out in pairwise(widths))

    assert 10 < kernels(TEACHER_WIDTHS) / kernels(STUDENT_WIDTHS) < 15


def test_the_parameters_of_the_network_are_as_counted_by_hand():
    network = residual_network((28, 28), 10, (2, 3))
    stem, block = 9 * 2, 9 * 2 * 3 + 9 * 3 * 3 + 2 * 3
    statistics = 4 * (2 + 3 + 3 + 3)
    assert network.count_params() == stem + block + statistics + 3 * 10 + 10
