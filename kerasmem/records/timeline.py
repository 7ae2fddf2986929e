"""Every block of memory that was in use during a few steps, and when.

Events are counted from 0 in the order in which the allocator made them; each is the
allocation or the free of exactly one block.
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
"""Of a timeline as JSON: one of 130,000 blocks takes some 20 MiB."""

PHASES = ("forward", "backward", "optimizer", "input", "unknown")


@dataclass(frozen=True)
class Block:
    """One block of memory, from its allocation to its free.

    Args:
        requested_bytes: what the operation asked for.
        given_bytes: what the allocator gave, rounding and waste included.
        address: where it lies, in bytes from the allocator's zero.
        allocated_at: number of the event that allocated it, None if it was in use
            when the window opened.
        freed_at: number of the event that freed it, None if it was in use when the
            window closed.
        operation: the framework's name of the operation, `""` if unknown.
        layer: path of the Keras layer it belongs to, None if it belongs to none.
        phase: one of `PHASES`.
        category: one of `CATEGORIES`.
        shape: shape of the tensor in it such as `"[64,128]"`, `""` if unknown.
        dtype: type of its entries such as `"float32"`, `""` if unknown.
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

    The bytes given to the blocks alive after event `n` are `in_use_bytes[n]`, the
    allocator's own figure; the blocks alive before event 0 are `opening_bytes`.

    Args:
        allocator: the framework's name of the allocator or device, such as
            `"GPU_0_bfc"`.
        source: `"profiler"` (TensorFlow), `"snapshot"` (torch), `"buffer assignment"`
            (XLA's plan for a compiled step) or `"simulation"`.
        first_step: number of the first step in the window, from 0 over the whole
            fit.
        steps: number of steps in the window.
        opening_bytes: bytes in use when the window opened.
        times_ns: nanoseconds from the window's begin, per event; in a buffer
            assignment the number of the instruction.
        in_use_bytes: bytes in use after each event, by the allocator's own count.
        reserved_bytes: bytes of the allocator's pool after each event; empty if it
            does not say.
        fragmentation: share of the pool's free bytes that lie outside of its largest
            free block, 0 to 1, after each event; empty if the allocator does not say.
        blocks: every block.
        folded: number of blocks that were put together with others of the same layer,
            phase and category to keep the file small; 0 if every block is here.
        lost_events: number of events that the profiler told of but that are left out,
            because others between them and the rest are missing; 0 if none is.

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
        # The fields of a real step are a million characters long.
        return (
            f"Timeline({self.allocator!r}, {self.source!r}, "
            f"first_step={self.first_step}, steps={self.steps}, "
            f"peak_bytes={self.peak_bytes}, blocks={len(self.blocks)})"
        )

    @property
    def peak_event(self) -> int | None:
        """Number of the event after which most bytes are in use, None without one.

        None too if that was before the first event.
        """
        if not self.in_use_bytes or max(self.in_use_bytes) <= self.opening_bytes:
            return None
        return self.in_use_bytes.index(max(self.in_use_bytes))

    @property
    def peak_bytes(self) -> int:
        """Most bytes in use at once."""
        return max((self.opening_bytes, *self.in_use_bytes))

    def live(self, event: int | None) -> Iterator[Block]:
        """Yield the blocks in use after `event`, or at the opening for None."""
        now = -1 if event is None else event
        for block in self.blocks:
            begin = -1 if block.allocated_at is None else block.allocated_at
            if begin <= now and (block.freed_at is None or block.freed_at > now):
                yield block

    def to_json(self) -> str:
        """Return the timeline as JSON: texts once each, blocks by column."""
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
        """Return the timeline that `to_json` made `text` of."""
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
                f"A timeline of {events} events has figures or blocks of others."
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
