"""Timelines: every memory block in use during a few steps, with its lifetime.

Events are numbered from 0 in the allocator's order. Each event is the allocation or the
free of exactly one block.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from kerasmem.checks import rules_of
from kerasmem.errors import InputError
from kerasmem.records.plain import read_json, reader_of, record_from
from kerasmem.units import MIB

CATEGORIES = (
    "parameter",
    "gradient",
    "optimizer_state",
    "activation",
    "temporary",
    "input",
    "unknown",
)
MOST_TEXT_BYTES = 32 * MIB
"""Maximum size of a timeline as JSON. A timeline of 130,000 blocks takes about 20
MiB."""

PHASES = ("forward", "backward", "optimizer", "input", "unknown")


@dataclass(frozen=True)
class Block:
    """One memory block, from its allocation to its free.

    Args:
        requested_bytes: Bytes requested by the operation.
        given_bytes: Bytes allocated, including rounding.
        address: Offset in bytes from the allocator's origin.
        allocated_at: Event of the allocation, or `None` if it precedes the window.
        freed_at: Event of the free, or `None` if it follows the window.
        operation: Operation in the framework, or `""` if unknown.
        layer: Path of the Keras layer, or `None`.
        phase: One of `PHASES`.
        category: One of `CATEGORIES`.
        shape: Shape of the tensor, such as `"[64,128]"`, or `""` if unknown.
        dtype: Data type, such as `"float32"`, or `""` if unknown.
    """

    requested_bytes: int
    given_bytes: int
    address: int
    allocated_at: int | None
    freed_at: int | None
    operation: str
    layer: str | None
    phase: Annotated[str, PHASES]
    category: Annotated[str, CATEGORIES]
    shape: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class Timeline:
    """The blocks of one allocator over a window of steps.

    After event `n`, `in_use_bytes[n]` bytes are in use according to the allocator.
    Before event 0, `opening_bytes` are in use.

    Args:
        allocator: Name of the allocator or device in the framework, such as
            `"GPU_0_bfc"`.
        source: `"profiler"` (TensorFlow), `"snapshot"` (torch), `"buffer assignment"`
            (XLA's plan of a compiled step) or `"simulation"`.
        first_step: Index of the first step in the window, from 0 over the whole fit.
        steps: Number of steps in the window.
        opening_bytes: Bytes in use at the start of the window.
        times_ns: Nanoseconds from the start of the window, per event. For a buffer
            assignment, indices of instructions.
        in_use_bytes: Bytes in use after each event.
        reserved_bytes: Size of the allocator's pool after each event. Empty if unknown.
        fragmentation: Fraction of the free pool bytes outside the largest free block,
            in [0, 1], after each event. Empty if unknown.
        blocks: All blocks.
        folded: Number of blocks merged by layer, phase and category in files of
            earlier versions. Otherwise 0.
        lost_events: Number of profiler events omitted because of a gap in the
            recording. 0 if none is omitted.

    Example:
        >>> Timeline("cpu", "simulation", 0, 1, 64, (0, 5), (96, 64), (), (), ())
        Timeline('cpu', 'simulation', first_step=0, steps=1, peak_bytes=96, blocks=0)
    """

    allocator: str
    source: str
    first_step: int
    steps: int
    opening_bytes: int
    times_ns: tuple[int, ...]
    in_use_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    fragmentation: tuple[float, ...]
    blocks: tuple[Block, ...]
    folded: int = 0
    lost_events: int = 0

    def __repr__(self) -> str:
        # The fields of a real step take a million characters.
        return (
            f"Timeline({self.allocator!r}, {self.source!r}, "
            f"first_step={self.first_step}, steps={self.steps}, "
            f"peak_bytes={self.peak_bytes}, blocks={len(self.blocks)})"
        )

    @property
    def peak_event(self) -> int | None:
        """Event after which the most bytes are in use.

        `None` without events, or if the peak precedes the first event.
        """
        if not self.in_use_bytes or max(self.in_use_bytes) <= self.opening_bytes:
            return None
        return self.in_use_bytes.index(max(self.in_use_bytes))

    @property
    def peak_bytes(self) -> int:
        """Peak bytes in use."""
        return max((self.opening_bytes, *self.in_use_bytes))

    def live(self, event: int | None) -> Iterator[Block]:
        """Yields the blocks in use after `event`. `None` is the start of the window."""
        now = -1 if event is None else event
        for block in self.blocks:
            begin = -1 if block.allocated_at is None else block.allocated_at
            if begin <= now and (block.freed_at is None or block.freed_at > now):
                yield block

    def to_json(self) -> str:
        """Returns the timeline as JSON.

        Each string is stored once. Blocks are stored by column.
        """
        texts: dict[str | None, int] = {}
        columns = {
            field.name: [
                texts.setdefault(value, len(texts)) if field.name in _TEXTS else value
                for value in (getattr(block, field.name) for block in self.blocks)
            ]
            for field in fields(Block)
        }
        content = vars(self) | {"blocks": columns, "texts": list(texts)}
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Timeline":
        """Returns the timeline stored by `to_json`."""
        content = read_json(text, MOST_TEXT_BYTES)
        try:
            blocks = _blocks(content.pop("texts"), content["blocks"])
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise InputError("The blocks of a timeline are damaged.") from error
        timeline = replace(record_from(cls, content | {"blocks": []}), blocks=blocks)
        timeline._check()
        return timeline

    def _check(self) -> None:
        events = len(self.in_use_bytes)
        series = (self.reserved_bytes, self.fragmentation)
        moments = (m for b in self.blocks for m in (b.allocated_at, b.freed_at))
        if (
            len(self.times_ns) != events
            or any(len(figures) not in (0, events) for figures in series)
            or any(moment is not None and moment >= events for moment in moments)
        ):
            raise InputError(
                f"A timeline of {events} events has figures or blocks of other events."
            )


def _blocks(texts: list[Any], columns: dict[str, Any]) -> tuple[Block, ...]:
    read: list[Iterator[Any]] = []
    for name, rule in rules_of(Block).items():
        column = columns[name]
        if name in _TEXTS:
            column = [texts[index] for index in column]
        read.append(map(reader_of("Block", name, rule), column))
    return tuple(Block(*row) for row in zip(*read, strict=True))


_TEXTS = ("operation", "layer", "phase", "category", "shape", "dtype")
