"""Memory timelines in columns, for `timeline.js`.

A moment is the state between two events. Moment 0 is the start of the window, and
moment `n + 1` follows event `n`. A block is live from `start` up to, but excluding,
`end`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from kerasmem.records import CATEGORIES, PHASES, Block, Timeline
from kerasmem.records.estimate import NO_LAYER
from kerasmem.records.table import MOST_ROWS, Table, evenly, share_text
from kerasmem.report.page.panels import Packer
from kerasmem.units import format_bytes

MOST_BLOCKS = 300_000

# Patterns of allocator names, and their descriptions.
_ALLOCATORS = (
    (r"bfc_cpu_allocator\w*", "TensorFlow's allocator (CPU)"),
    (r"(?:gpu|cuda)_host_bfc", "TensorFlow's allocator (pinned host memory)"),
    (r"GPU_(\d+)_bfc", r"TensorFlow's allocator (GPU:\1)"),
    (r"cpu", "torch's allocator (CPU)"),
    (r"cuda(:\d+)?", r"torch's allocator (GPU\1)"),
)


def chosen(timelines: Sequence[Timeline]) -> tuple[list[Timeline], str]:
    """Returns the timelines that fit on a page, and a note about omitted ones.

    Selects the highest peaks and keeps the order of recording.
    """
    by_peak = sorted(range(len(timelines)), key=lambda i: -timelines[i].peak_bytes)
    numbers: list[int] = []
    blocks = 0
    for index in by_peak:
        blocks += len(timelines[index].blocks)
        if numbers and blocks > MOST_BLOCKS:
            break
        numbers.append(index)
    note = ""
    if len(numbers) < len(timelines):
        count = f"{len(numbers)} of {len(timelines)}"
        note = f"Showing the {count} windows with the highest peaks."
    return [timelines[i] for i in sorted(numbers)], note


def timeline_title(timeline: Timeline) -> str:
    """Returns the allocator and the steps of a timeline."""
    first, last = timeline.first_step + 1, timeline.first_step + timeline.steps
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{allocator_words(timeline)}, {steps}"


def allocator_words(timeline: Timeline) -> str:
    """Returns a description of the allocator, or its name if unknown.

    Example:
        >>> from dataclasses import replace
        >>> one = Timeline("GPU_0_bfc", "profiler", 0, 1, 0, (), (), (), (), ())
        >>> allocator_words(one)
        "TensorFlow's allocator (GPU:0)"
        >>> allocator_words(replace(one, allocator="gpu:0", source="buffer assignment"))
        "XLA's plan (gpu:0)"
    """
    name, of, process = timeline.allocator.partition(" of process ")
    if timeline.source == "buffer assignment":
        name = "XLA's plan" + f" ({name})" * (name != "XLA")
    for pattern, words in _ALLOCATORS:
        if match := re.fullmatch(pattern, name):
            name = match.expand(words)
    return name + of + process


def timeline_columns(
    timeline: Timeline, packer: Packer, model: str = ""
) -> dict[str, Any]:
    """Returns a timeline for the browser and adds its numbers to the packer.

    The name of the model is removed from layer paths.
    """
    blocks = timeline.blocks
    starts, ends = lives(timeline)
    kinds: dict[tuple[str, ...], int] = {}
    kind = [kinds.setdefault(_kind(block, model), len(kinds)) for block in blocks]
    lowest = min((block.address for block in blocks), default=0)
    opening, times = timeline.opening_bytes, timeline.times_ns
    return {
        "title": timeline_title(timeline),
        "source": timeline.source,
        "folded": timeline.folded,
        "categories": CATEGORIES,
        "phases": PHASES,
        "kinds": list(kinds),
        "kind": packer.whole(kind),
        "start": packer.whole(starts, rising=True),
        "life": packer.whole([e - s for s, e in zip(starts, ends, strict=True)]),
        "given": packer.whole([block.given_bytes for block in blocks]),
        "requested": packer.whole([block.requested_bytes for block in blocks]),
        "address": packer.whole([block.address - lowest for block in blocks]),
        "time": packer.whole([0, *times], rising=True),
        "total": packer.whole([opening, *timeline.in_use_bytes], rising=True),
        "reserved": packer.whole(timeline.reserved_bytes, rising=True),
        "fragmentation": packer.place(timeline.fragmentation),
    }


def _kind(block: Block, model: str) -> tuple[str, ...]:
    layer = (block.layer or "").removeprefix(f"{model}/")
    texts = (block.operation, layer, block.phase, block.category)
    return (*texts, block.shape, block.dtype)


def lives(timeline: Timeline) -> tuple[list[int], list[int]]:
    """Returns the first moment of each block, and the first moment after it."""
    after = len(timeline.in_use_bytes) + 1
    starts = [
        0 if b.allocated_at is None else b.allocated_at + 1 for b in timeline.blocks
    ]
    ends = [after if b.freed_at is None else b.freed_at + 1 for b in timeline.blocks]
    return starts, ends


BYTES_GLOSS = (
    "Requested: bytes requested by the program. Given: bytes reserved by the allocator."
)


def peak_table(timeline: Timeline, model: str = "") -> Table:
    """Returns the memory in use at the peak by layer and category, largest first.

    The name of the model is removed from layer paths.
    """
    given_bytes: Counter[tuple[str, str]] = Counter()
    requested_bytes: Counter[tuple[str, str]] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for block in timeline.live(timeline.peak_event):
        layer = (block.layer or NO_LAYER).removeprefix(f"{model}/")
        key = layer, block.category
        given_bytes[key] += block.given_bytes
        requested_bytes[key] += block.requested_bytes
        count[key] += 1
    total = sum(given_bytes.values())
    rows = [
        (
            layer,
            category.replace("_", " "),
            format_bytes(size),
            format_bytes(requested_bytes[layer, category]),
            f"{count[layer, category]:,}",
            share_text(size, total),
        )
        for (layer, category), size in given_bytes.most_common(MOST_ROWS)
    ]
    smaller = len(given_bytes) - len(rows)
    left_out = f" The {smaller:,} smallest rows are omitted." if smaller else ""
    return Table(
        f"in use at the peak, {format_bytes(total)} in all",
        ("layer", "category", "given", "requested", "blocks", "share"),
        tuple(rows),
        texts=2,
        note=f"{BYTES_GLOSS}{left_out}",
    )


def course_table(timeline: Timeline) -> Table:
    """Returns the bytes in use by category at about forty moments."""
    sizes = sizes_by_category(timeline)
    peak = 0 if timeline.peak_event is None else timeline.peak_event + 1
    moments, note = evenly(range(sizes.shape[1]), most=40)
    times = (0, *timeline.times_ns)
    in_use = (timeline.opening_bytes, *timeline.in_use_bytes)
    rows = [
        (
            f"{moment:,}{' (peak)' if moment == peak else ''}",
            f"{times[moment] / 1e6:,.3f}",
            format_bytes(in_use[moment]),
            *(format_bytes(int(size)) for size in sizes[:, moment]),
        )
        for moment in sorted({*moments, peak})
    ]
    names = (name.replace("_", " ") for name in CATEGORIES)
    return Table(
        "bytes in use by category over the window",
        ("event", "ms", "in use", *names),
        tuple(rows),
        note=note,
    )


def sizes_by_category(timeline: Timeline) -> np.ndarray:
    """Returns the bytes of live blocks, of shape (categories, moments)."""
    moments = len(timeline.in_use_bytes) + 1
    changes = np.zeros((len(CATEGORIES), moments + 1), np.int64)
    rows = [CATEGORIES.index(block.category) for block in timeline.blocks]
    given_bytes = [block.given_bytes for block in timeline.blocks]
    starts, ends = lives(timeline)
    np.add.at(changes, (rows, starts), given_bytes)
    np.subtract.at(changes, (rows, ends), given_bytes)
    return changes.cumsum(axis=1)[:, :moments]
