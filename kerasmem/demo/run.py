"""The demo: monitor a training, compress the model, distill a student."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
from rich.console import Console

from kerasmem.backends.seeding import seeded
from kerasmem.callbacks import GradientMonitor, MemoryMonitor
from kerasmem.compression.compress import compress
from kerasmem.compression.distill import distill
from kerasmem.compression.measure import figures, latencies
from kerasmem.compression.prune import Prune
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.result import CompressionResult
from kerasmem.demo.recipe import (
    Recipe,
    Split,
    compile_classifier,
    falling_rate,
    mirrored_demo_data,
    residual_network,
)
from kerasmem.files.contents import file_size
from kerasmem.files.save import save_model
from kerasmem.files.write import save_stored
from kerasmem.records import ModelFigures, Run
from kerasmem.report.compression import Page, write_page
from kerasmem.report.progress import FitProgress
from kerasmem.report.run import write_run_page
from kerasmem.types import Model

_LATENCY_BATCH = 32


@dataclass(frozen=True)
class Workshop:
    """Context of all stages."""

    out: Path
    train: Split
    test: Split
    recipe: Recipe
    console: Console
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def network(self, widths: tuple[int, ...], dropout: float = 0.0) -> Any:
        """Return an untrained network for the images."""
        x, y = self.train
        return residual_network(x.shape[1:], 1 + int(y.max()), widths, dropout)

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """Time a stage and print its title."""
        self.console.print(title, highlight=False)
        start = time.perf_counter()
        yield
        self.seconds[title] = round(time.perf_counter() - start, 1)


def train(shop: Workshop) -> tuple[Any, MemoryMonitor, GradientMonitor]:
    """Train the network with both monitors and write its files."""
    recipe = shop.recipe
    model = shop.network(recipe.widths, recipe.dropout)
    compile_classifier(model, recipe.learning_rate)
    memory, gradients = MemoryMonitor(), GradientMonitor()
    with shop.stage("training"):
        model.fit(
            *shop.train,
            batch_size=recipe.batch_size,
            epochs=recipe.epochs,
            validation_data=shop.test,
            callbacks=[
                falling_rate(recipe.learning_rate, recipe.epochs),
                memory,
                gradients,
                keras.callbacks.CSVLogger(shop.out / "epochs.csv"),
                FitProgress(),
            ],
            verbose=0,
        )
    save_stored(model, shop.out / "original.keras")
    return model, memory, gradients


def shrink(shop: Workshop) -> CompressionResult:
    """Compress the saved file: prune 80 %, fine-tune, quantize to int8."""
    recipe = shop.recipe
    rate = falling_rate(recipe.fine_tune_learning_rate, recipe.fine_tune_epochs)
    with shop.stage("fine-tuning"):
        result = compress(
            shop.out / "original.keras",
            [
                Prune(0.8, scope="global", include=("logits",)),
                Quantize("int8"),
            ],
            data=shop.train,
            validation_data=shop.test,
            fine_tune_epochs=recipe.fine_tune_epochs,
            batch_size=recipe.batch_size,
            callbacks=[rate, FitProgress()],
            seed=recipe.seed,
            measure=("file", "weights", "metrics", "activations"),
        )
    result.save(shop.out / "compressed.keras")
    return result


def teach(shop: Workshop, teacher: Model) -> Any:
    """Distill the network into a student with less than a tenth of its parameters."""
    recipe = shop.recipe
    student = shop.network(recipe.student_widths)
    # The cache lets the teacher run once per image, not once per epoch.
    with TemporaryDirectory() as cache, shop.stage("distilling"):
        new_student = distill(
            teacher,
            compile_classifier(student, recipe.learning_rate),
            shop.train,
            epochs=recipe.student_epochs,
            batch_size=recipe.student_batch_size,
            temperature=recipe.temperature,
            hard_weight=recipe.hard_weight,
            cache=cache,
            callbacks=[
                falling_rate(recipe.learning_rate, recipe.student_epochs),
                FitProgress(),
            ],
            verbose=0,
            seed=recipe.seed,
        )
    save_model(new_student, shop.out / "student.keras")
    return new_student


def compare(
    shop: Workshop, original: Model, compressed: CompressionResult, student: Model
) -> dict[str, ModelFigures]:
    """Return the figures of the three models."""
    shop.console.print("measuring", highlight=False)
    test = shop.test
    size = file_size(shop.out / "student.keras")
    report = compressed.report
    by_name = {
        "original": report.before,
        "compressed": report.after,
        "student": figures(student, test, _LATENCY_BATCH, size),
    }
    # Timed in turns, so that all models have the same conditions.
    times = latencies([original, compressed.model, student], test, _LATENCY_BATCH)
    return {
        name: replace(each, **time)
        for (name, each), time in zip(by_name.items(), times, strict=True)
    }


_FILES = ("original.keras", "compressed.keras", "student.keras", "epochs.csv")
_PAGE, _TRAINING_PAGE = "report.html", "training.html"


@dataclass(frozen=True)
class DemoRecord:
    """Results of the demo."""

    models: dict[str, ModelFigures]
    files: tuple[str, ...]
    seconds: dict[str, float]
    samples: int


def run_demo(
    out: str | Path,
    *,
    recipe: Recipe | None = None,
    console: Console | None = None,
) -> DemoRecord:
    """Train, compress and distill, and return the results.

    The files in `out` are `original.keras` (saved by Keras without optimizer state),
    `compressed.keras`, `student.keras`, `epochs.csv`,
    `report.html` and `training.html`.

    Raises:
        OutputError: If a file cannot be written.
    """
    shop = Workshop(
        Path(out),
        *mirrored_demo_data(),
        recipe or Recipe(),
        console or Console(stderr=True, highlight=False),
    )
    shop.out.mkdir(parents=True, exist_ok=True)
    with seeded(shop.recipe.seed):
        model, memory, gradients = train(shop)
        compression = shrink(shop)
        student = teach(shop, model)
    figures_by_name = compare(shop, model, compression, student)
    page = Page(
        title="kerasmem demo",
        models=figures_by_name,
        changes=compression.changes,
        origin={"seed": shop.recipe.seed},
    )
    write_page(shop.out / _PAGE, page)
    records = tuple(memory.records), tuple(gradients.records)
    run = Run(memory=records[0], gradients=records[1], name="kerasmem demo")
    write_run_page(run, shop.out / _TRAINING_PAGE)
    names = (*_FILES, _PAGE, _TRAINING_PAGE)
    files = tuple(str(shop.out / name) for name in names)
    return DemoRecord(figures_by_name, files, shop.seconds, len(shop.test[0]))
