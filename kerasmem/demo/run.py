"""The whole job, once: watch a training, shrink the model, teach a student."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from kerasmem.backends.seeding import seeded
from kerasmem.demo.images import load_images
from kerasmem.demo.recipe import Recipe
from kerasmem.demo.stages import Workshop, compare, shrink, teach, train
from kerasmem.records import ModelFigures
from kerasmem.report.compression import Page, write_page

_FILES = ("original.keras", "compressed.keras", "student.keras", "epochs.csv")
_PAGE = "report.html"


@dataclass(frozen=True)
class DemoRecord:
    """What the demo measured.

    Args:
        models: figures of `original`, `compressed` and `student`, in this order.
        files: paths of the files that were written.
        seconds: wall time of each training.
        samples: number of test images behind the accuracies.
    """

    models: dict[str, ModelFigures]
    files: tuple[str, ...]
    seconds: dict[str, float]
    samples: int


def run_demo(
    out: str | Path,
    data: str | Path | None = None,
    *,
    recipe: Recipe | None = None,
    console: Console | None = None,
) -> DemoRecord:
    """Train, compress and distill, and return what was measured.

    Into `out` go `original.keras` (as Keras itself saves it, without optimizer state),
    `compressed.keras`, `student.keras`, `epochs.csv` and `report.html`.

    Args:
        out: folder for the files, made if it is missing.
        data: an `.npz` file of images instead of the demo's own.
        recipe: settings of the trainings.
        console: where progress goes; by default stderr.

    Raises:
        DataError: if the file does not hold labeled images.
        OutputError: if a file cannot be written.
    """
    shop = Workshop(
        Path(out),
        load_images(data),
        recipe or Recipe(),
        console or Console(stderr=True, highlight=False),
    )
    shop.out.mkdir(parents=True, exist_ok=True)
    with seeded(shop.recipe.seed):
        watched = train(shop)
        compressed = shrink(shop)
        student = teach(shop, watched.model)
    models = {"original": watched.model, "compressed": compressed.model}
    measured = compare(shop, models | {"student": student})
    page = Page(
        title="kerasmem demo",
        models=measured,
        changes=compressed.changes,
        memory=tuple(watched.memory.records),
        gradients=tuple(watched.gradients.records),
        origin={"data": shop.images.name, "seed": shop.recipe.seed},
    )
    write_page(shop.out / _PAGE, page)
    files = tuple(str(shop.out / name) for name in (*_FILES, _PAGE))
    return DemoRecord(measured, files, shop.seconds, len(shop.images.test[0]))
