"""Codes of a weight that is never whole in memory: its largest entries, then the codes.

What comes of it is what `Coding.encode` makes of the whole weight, to the bit.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from kerasmem.backends.layer_weights import forget_float_weights
from kerasmem.compression.account import account, decibels
from kerasmem.compression.quantize.apply import (
    Exclude,
    choose,
    largest_block,
    place_of,
)
from kerasmem.compression.quantize.coding import Coded, Coding
from kerasmem.compression.quantize.config import ADAPTIVE
from kerasmem.compression.quantize.layer import Place, to_quantized
from kerasmem.compression.quantize.math import (
    affine_codes_of,
    affine_scales_of,
    codes_of,
    dequantize,
    finite,
    pack_int4,
    scales_of,
)
from kerasmem.compression.working import Streams, Told
from kerasmem.files.entries import PIECE, Entries, Readable, cuts, in_order
from kerasmem.graph.layers import Weight, sublayers
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize


def why_not(config: "Quantize") -> str | None:
    """Return why a choice needs the whole model, None if it does not."""
    if config.is_static:
        return f"the scheme {config.scheme!r} looks at all of the model at once"
    if config.rounding == ADAPTIVE or config.bias_correction:
        return "it runs the model on samples"
    return None


def quantize_in_blocks(
    model: Any, config: "Quantize", streams: Streams, left: Exclude = lambda _: False
) -> Told:
    """Give the layers of a described model the form that they have with codes.

    Args:
        model: the model; it is changed in place.
        config: the choice, of one scheme.
        streams: get the codes.
        left: tells of more weights to leave alone than the choice does.

    Raises:
        ModelError: if there is nothing to quantize.
        ConfigError: if a regular expression means no weight.
    """
    told = _planned(model, config, streams, left)
    made = [each for each in told if isinstance(each, _Pending)]
    by_block: dict[int, tuple[Any, list[Place]]] = {}
    for each in made:
        block = each.weight.block
        by_block.setdefault(id(block), (block, []))[1].append(each.place)
    for layer, places in by_block.values():
        to_quantized(layer, places)
    for each in made:
        stand_in = vars(each.weight.owner)[each.place.attribute]
        for variable, entries in zip(stand_in.parts, each.codes.parts, strict=True):
            streams.put(variable, entries)
    forget_float_weights(sublayers(model))
    return lambda: [*map(_told, told)]


def losses(model: Any, config: "Quantize", streams: Streams) -> list[WeightChange]:
    """Return what a choice would do to the weights of a model, which stays as it is.

    Args:
        model: the model, which may be described.
        config: the choice, of one scheme.
        streams: tell what weights hold.

    Raises:
        ModelError: if there is nothing to quantize.
        ConfigError: if a regular expression means no weight.
    """
    changes = []
    for each in _planned(model, config, streams):
        if isinstance(each, _Pending):
            deque(each.codes.parts[0].pieces(), maxlen=0)
        changes.append(_told(each))
    return changes


def _planned(
    model: Any, config: "Quantize", streams: Streams, left: Exclude = lambda _: False
) -> list["WeightChange | _Pending"]:
    """Return what is to become of each weight, or why nothing is."""
    reasons = choose(model, config, left)
    block = largest_block([weight for weight, _ in reasons])
    planned: list[WeightChange | _Pending] = []
    for weight, reason in reasons:
        if reason is not None:
            planned.append(account(weight, "quantize", reason, changed=False))
            continue
        place = place_of(weight, config, block)
        codes = _Codes(streams.readable(weight.variable), place.coding, weight.path)
        planned.append(_Pending(weight, place, codes))
    return planned


def _told(planned: "WeightChange | _Pending") -> WeightChange:
    return planned.told() if isinstance(planned, _Pending) else planned


@dataclass(frozen=True)
class _Pending:
    weight: Weight
    place: Place
    codes: "_Codes"

    def told(self) -> WeightChange:
        """Return what became of the weight, once it has been read."""
        stored, coding = self.codes.stored, self.place.coding
        scales, zeros = (
            None if part is None else np.broadcast_to(np.int8(0), part[0])
            for part in (stored.scales, stored.zero_points)
        )
        detail = coding.describe(Coded(None, scales, zeros))
        if not self.codes.source.nonzero:
            detail += ", all zero"
        elif self.place.dynamic:
            detail += ", times int8"
        return account(
            self.weight,
            "quantize",
            detail,
            changed=True,
            after_bytes=sum(part.nbytes for part in self.codes.parts),
            sqnr_db=decibels(self.codes.signal, self.codes.noise),
        )


@dataclass(frozen=True)
class _Cut:
    """Entries that lie in a row: some rows of one lead, or some leads.

    Args:
        leads: the first lead, and where they end.
        rows: the first of the rows that are summed over, and where they end.
    """

    leads: tuple[int, int]
    rows: tuple[int, int]


class _Codes:
    """The codes, scales and zero points of a weight.

    The weight is seen as (leads, rows, trail): an output channel sums over the rows.

    Args:
        source: the weight.
        coding: how it is stored.
        path: name of the weight.
    """

    def __init__(self, source: Readable, coding: Coding, path: str) -> None:
        self.source, self.coding, self._path = source, coding, path
        self.stored = coding.stored(source.shape)
        self.signal = self.noise = 0.0
        self._scales: tuple[np.ndarray, ...] | None = None
        codes = _Part(self, 0, *self.stored.codes)
        rest = [part for part in (self.stored.scales, self.stored.zero_points) if part]
        self.parts: list[Entries] = [
            codes,
            *(_Part(self, 1 + n, *part) for n, part in enumerate(rest)),
        ]

    def pieces(self, part: int) -> Iterator[np.ndarray]:
        """Yield the entries of codes (0), scales (1) or zero points (2)."""
        if self.coding.bits == 16:
            yield from self._counted(in_order(self._halved, cuts(self.source.size)))
        elif not self._is_in_rows:
            yield self._whole()[part].reshape(-1)
        elif part:
            yield self._all_scales()[part - 1].reshape(-1)
        else:
            self._all_scales()
            yield from self._counted(in_order(self._coded, self._cuts()))

    def _counted(
        self, made: Iterator[tuple[np.ndarray, tuple[float, float], tuple[int, int]]]
    ) -> Iterator[np.ndarray]:
        before = after = 0
        for codes, (signal, noise), (entries, kept) in made:
            self.signal, self.noise = self.signal + signal, self.noise + noise
            before, after = before + entries, after + kept
            yield codes
        self.source.nonzero, self.parts[0].nonzero = before, after

    def _halved(
        self, cut: tuple[int, int]
    ) -> tuple[np.ndarray, tuple[float, float], tuple[int, int]]:
        values = finite(self.source.read(*cut), self._path)
        halved = self.coding.encode(values).codes
        kept = int(np.count_nonzero(halved))
        exact = values.astype(np.float32, copy=False)
        powers = _powers(exact, exact - halved.astype(np.float32))
        return halved, powers, (int(np.count_nonzero(values)), kept)

    @property
    def _is_in_rows(self) -> bool:
        axes = self.coding.axes
        side_by_side = bool(axes) and axes == tuple(range(axes[0], axes[-1] + 1))
        return side_by_side and self.source.size > 0

    def _whole(self) -> tuple[np.ndarray, ...]:
        """Return the parts of a weight that is no rows of channels, read as a whole."""
        if self._scales is None:
            values = finite(self.source.whole(), self._path)
            coded = self.coding.encode(values)
            rounded = self.coding.decoded(coded, values.shape)
            exact = values.astype(np.float32, copy=False)
            self.signal, self.noise = _powers(exact, exact - rounded)
            self.parts[0].nonzero = int(np.count_nonzero(rounded))
            self._scales = coded.parts
        return self._scales

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """Numbers of leads, of rows, and of entries in a row."""
        shape, axes = self.source.shape, self.coding.axes
        first, last = axes[0], axes[-1] + 1
        return (
            math.prod(shape[:first]),
            math.prod(shape[first:last]),
            math.prod(shape[last:]),
        )

    @property
    def _length(self) -> int | None:
        """Rows in a group that has a scale of its own, None for all rows."""
        rows = self.coding.rows(self.source.shape)
        return None if rows is None or rows.groups == 1 else rows.length

    def _cuts(self) -> Iterator[_Cut]:
        leads, rows, trail = self._sizes
        if rows * trail <= PIECE:
            step = PIECE // (rows * trail)
            for first in range(0, leads, step):
                yield _Cut((first, min(first + step, leads)), (0, rows))
            return
        unit = self._length or 2  # two rows may share bytes
        step = max(PIECE // (trail * unit), 1) * unit
        for lead in range(leads):
            for row in range(0, rows, step):
                yield _Cut((lead, lead + 1), (row, min(row + step, rows)))

    def _read(self, cut: _Cut) -> np.ndarray:
        """Return entries as (leads, groups, rows of a group, trail), float32."""
        _, rows, trail = self._sizes
        (lead, end), (first, last) = cut.leads, cut.rows
        start = (lead * rows + first) * trail
        count = (end - lead) * (last - first) * trail
        values = self.source.read(start, start + count)
        values = values.astype(np.float32, copy=False)
        values = values.reshape(end - lead, last - first, trail)
        length = self._length or last - first
        missing = -(last - first) % length
        if missing:
            values = np.pad(values, ((0, 0), (0, missing), (0, 0)))
        return values.reshape(end - lead, -1, length, trail)

    def _part_of(self, array: np.ndarray, cut: _Cut) -> np.ndarray:
        """Return the scales of some entries, which broadcast against them."""
        if self.coding.granularity == "tensor":
            return array
        groups = slice(None)
        if self._length:
            first, last = cut.rows
            groups = slice(first // self._length, -(-last // self._length))
        return array[slice(*cut.leads), groups]

    def _all_scales(self) -> tuple[np.ndarray, ...]:
        """Return the scales, and zero points if there are any, of the whole weight."""
        if self._scales is None:
            low, high = self._ends()
            if not (np.isfinite(low).all() and np.isfinite(high).all()):
                finite(self.source.whole(), self._path)
            if self.coding.symmetric:
                self._scales = (scales_of(np.maximum(high, -low), self.coding.bits),)
            else:
                self._scales = affine_scales_of(low, high, self.coding.bits)
        return self._scales

    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        leads, rows, trail = self._sizes
        groups = -(-rows // self._length) if self._length else 1
        is_tensor = self.coding.granularity == "tensor"
        shape = (1, 1, 1, 1) if is_tensor else (leads, groups, 1, trail)
        low, high = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        axis = None if is_tensor else 2

        def ends(cut: _Cut) -> tuple[_Cut, np.ndarray, np.ndarray]:
            values = self._read(cut)
            return (
                cut,
                values.min(axis=axis, keepdims=True),
                values.max(axis=axis, keepdims=True),
            )

        for cut, least, most in in_order(ends, self._cuts()):
            for found, new, choose_of in (
                (low, least, np.minimum),
                (high, most, np.maximum),
            ):
                part = self._part_of(found, cut)
                choose_of(part, new, out=part)
        return low, high

    def _coded(
        self, cut: _Cut
    ) -> tuple[np.ndarray, tuple[float, float], tuple[int, int]]:
        values, bits = self._read(cut), self.coding.bits
        scales, *rest = (self._part_of(each, cut) for each in self._all_scales())
        if rest:
            codes = affine_codes_of(values, scales, rest[0], bits)
            kept = int(np.count_nonzero(codes != rest[0]))
        else:
            codes = codes_of(values, scales, bits)
            kept = int(np.count_nonzero(codes))
        before = int(np.count_nonzero(values))
        lost = dequantize(codes, scales, *rest)
        np.subtract(values, lost, out=lost)
        powers = _powers(values, lost)
        if bits == 4:
            codes = pack_int4(codes, 2)
        return codes.reshape(-1), powers, (before, kept)


def _powers(exact: np.ndarray, lost: np.ndarray) -> tuple[float, float]:
    """Return the sums of squares of entries and of what is lost of them, float32."""

    def power(values: np.ndarray) -> float:
        flat = values.reshape(-1)
        found = float(flat @ flat)
        if math.isfinite(found):
            return found
        return float(np.square(flat, dtype=np.float64).sum())

    return power(exact), power(lost)


class _Part(Entries):
    """Codes, scales or zero points."""

    def __init__(
        self, codes: _Codes, part: int, shape: tuple[int, ...], dtype: str
    ) -> None:
        super().__init__(shape, getattr(ml_dtypes, dtype, dtype))
        self._codes, self._part = codes, part

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield all entries in order, as arrays of one axis."""
        return self._codes.pieces(self._part)
