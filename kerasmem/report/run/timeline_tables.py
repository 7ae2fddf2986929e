"""A memory timeline as tables: its peak, and its course."""

from collections import Counter

import numpy as np

from kerasmem.records import CATEGORIES, Timeline
from kerasmem.report.page.table import MOST_ROWS, Table, evenly, share_text
from kerasmem.report.run.timelines import lives
from kerasmem.units import format_bytes

_NO_LAYER = "(no layer)"
BYTES_GLOSS = (
    "Requested is what the program asked for, given what the allocator set aside for "
    "it."
)


def peak_table(timeline: Timeline, model: str = "") -> Table:
    """Return what was in use at the peak, by layer and category, most bytes first.

    Args:
        timeline: the timeline.
        model: name of the model, which is left out of the layers' paths.
    """
    given: Counter[tuple[str, str]] = Counter()
    asked: Counter[tuple[str, str]] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for block in timeline.alive(timeline.peak_event):
        layer = (block.layer or _NO_LAYER).removeprefix(f"{model}/")
        key = layer, block.category
        given[key] += block.given_bytes
        asked[key] += block.requested_bytes
        count[key] += 1
    total = sum(given.values())
    rows = [
        (
            layer,
            category.replace("_", " "),
            format_bytes(size),
            format_bytes(asked[layer, category]),
            f"{count[layer, category]:,}",
            share_text(size / total if total else None),
        )
        for (layer, category), size in given.most_common(MOST_ROWS)
    ]
    smaller = len(given) - len(rows)
    left_out = f" The {smaller:,} smallest rows are left out." if smaller else ""
    return Table(
        f"in use at the peak, {format_bytes(total)} in all",
        ("layer", "category", "given", "requested", "blocks", "share"),
        tuple(rows),
        texts=2,
        note=f"{BYTES_GLOSS}{left_out}",
    )


def course_table(timeline: Timeline) -> Table:
    """Return the bytes in use by category over the window, at some forty moments."""
    sizes = _sizes_by_category(timeline)
    peak = 0 if timeline.peak_event is None else timeline.peak_event + 1
    shown, note = evenly(range(sizes.shape[1]), most=40)
    times = (0, *timeline.times_ns)
    in_use = (timeline.opening_bytes, *timeline.in_use_bytes)
    rows = [
        (
            f"{moment:,}{' (peak)' if moment == peak else ''}",
            f"{times[moment] / 1e6:,.3f}",
            format_bytes(in_use[moment]),
            *(format_bytes(int(size)) for size in sizes[:, moment]),
        )
        for moment in sorted({*shown, peak})
    ]
    names = (name.replace("_", " ") for name in CATEGORIES)
    return Table(
        "bytes in use by category over the window",
        ("event", "ms", "in use", *names),
        tuple(rows),
        note=note,
    )


def _sizes_by_category(timeline: Timeline) -> np.ndarray:
    """Return the bytes given to the blocks alive, of shape (categories, moments)."""
    moments = len(timeline.in_use_bytes) + 1
    changes = np.zeros((len(CATEGORIES), moments + 1), np.int64)
    rows = [CATEGORIES.index(block.category) for block in timeline.blocks]
    given = [block.given_bytes for block in timeline.blocks]
    starts, ends = lives(timeline)
    np.add.at(changes, (rows, starts), given)
    np.subtract.at(changes, (rows, ends), given)
    return changes.cumsum(axis=1)[:, :moments]
