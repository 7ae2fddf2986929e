"""Out-of-memory errors on the page of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from kerasmem.records import PostMortem
from kerasmem.records.estimate import NO_LAYER
from kerasmem.records.post_mortem import (
    cause_sentence,
    fitting_sentence,
    moment_words,
    peak_words,
)
from kerasmem.records.table import MOST_ROWS, Table, share_text
from kerasmem.report.run.headline import Figure
from kerasmem.units import format_bytes

MOST_SHOWN = 12
ROUNDING_GLOSS = (
    "Rounding: excess of allocated over requested bytes, because the allocator uses "
    "fixed block sizes."
)
_LARGEST = 5


@dataclass(frozen=True)
class Shown:
    """A post-mortem in the form shown on the page.

    `gloss` explains a category that needs an explanation. `record` is the complete
    post-mortem.
    """

    title: str
    cause: str
    fitting: str
    figures: list[Figure]
    peak: str
    layers: str
    gloss: str
    table: Table
    record: PostMortem


def shown(post_mortems: Sequence[PostMortem]) -> tuple[list[Shown], str]:
    """Returns the post-mortems for a page, and a note about omitted ones."""
    note = (
        f"Showing the first {MOST_SHOWN} of {len(post_mortems):,}; all of them are in "
        "post_mortems.jsonl."
    )
    return [_shown(one) for one in post_mortems[:MOST_SHOWN]], note * (
        len(post_mortems) > MOST_SHOWN
    )


def _shown(post_mortem: PostMortem) -> Shown:
    process = f", process {post_mortem.process}" if post_mortem.process else ""
    words = moment_words(post_mortem)
    return Shown(
        title=f"{words[0].upper()}{words[1:]}{process}",
        cause=cause_sentence(post_mortem.cause),
        fitting=fitting_sentence(post_mortem),
        figures=_figures(post_mortem),
        peak=f"In use at the peak: {peak_words(post_mortem)}",
        layers=_layers(post_mortem),
        gloss=ROUNDING_GLOSS * any(p.category == "rounding" for p in post_mortem.parts),
        table=_table(post_mortem),
        record=post_mortem,
    )


def _figures(post_mortem: PostMortem) -> list[Figure]:
    cause = post_mortem.cause
    tensor = " ".join(filter(None, (cause.dtype, cause.shape)))
    sizes = (
        ("Requested", cause.requested_bytes, tensor),
        ("Largest free block", cause.largest_free_bytes, "at the failed allocation"),
        ("In use", cause.in_use_bytes, "at the failed allocation"),
        ("Limit", cause.limit_bytes, cause.device or ""),
        ("Variables", post_mortem.variable_bytes, "of the model and the optimizer"),
        ("Other memory in use", post_mortem.other_bytes, "between steps"),
    )
    return [
        Figure(label, format_bytes(size), detail)
        for label, size, detail in sizes
        if size is not None
    ]


def _layers(post_mortem: PostMortem) -> str:
    sizes = list(post_mortem.by_layer().items())
    layer_sizes = [
        f"{layer or NO_LAYER} {format_bytes(size)}" for layer, size in sizes[:_LARGEST]
    ]
    rest = len(sizes) - len(layer_sizes)
    more = f", and {rest:,} smaller" if rest > 0 else ""
    return f"By layer: {', '.join(layer_sizes)}{more}."


def _table(post_mortem: PostMortem) -> Table:
    parts = sorted(post_mortem.parts, key=lambda part: -part.nbytes)
    total = post_mortem.peak_bytes or 0
    rows = [
        (
            part.layer or NO_LAYER,
            part.category.replace("_", " "),
            format_bytes(part.nbytes),
            share_text(part.nbytes, total),
        )
        for part in parts[:MOST_ROWS]
    ]
    smaller = len(parts) - len(rows)
    how = "measured" if post_mortem.is_measured else "estimated"
    return Table(
        f"in use at the peak, by layer and category ({how})",
        ("layer", "category", "bytes", "share"),
        tuple(rows),
        texts=2,
        note=f"The {smaller:,} smallest rows are omitted." if smaller else "",
    )
