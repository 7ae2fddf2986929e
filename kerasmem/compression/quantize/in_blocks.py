"""Codes of a weight that is never whole in memory: its largest entries, then the codes.

What comes of it is what `Coding.encode` makes of the whole weight, to the bit.
"""

import math
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from kerasmem.compression.account import account, decibels
from kerasmem.compression.quantize.apply import (
    WeightPlan,
    replace_weights,
    stored_change,
)
from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.config import CLOSELY
from kerasmem.compression.quantize.layer import Place
from kerasmem.compression.quantize.math import (
    affine_codes_of,
    affine_scales_of,
    dequantize,
    finite,
    pack,
    short_scales,
)
from kerasmem.compression.working import LazyChanges, Streams
from kerasmem.files.entries import PIECE, Entries, Readable, in_order
from kerasmem.records import WeightChange
from kerasmem.stages import Progress

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize


def why_not(config: "Quantize") -> str | None:
    """Return why a choice needs the whole model, None if it does not."""
    if config.is_static:
        return f"the scheme {config.scheme!r} looks at all of the model at once"
    if config.takes_samples or config.bias_correction:
        return "it runs the model on samples"
    if config.scales == CLOSELY:
        return "its scales take several looks at a whole weight"
    return None


def store_in_blocks(model: Any, plan: WeightPlan, streams: Streams) -> LazyChanges:
    """Give the layers of a described model the form that they have with codes.

    Args:
        model: the model; it is changed in place.
        plan: of its weights.
        streams: get the codes.
    """
    codes = _codes_of(plan, streams)
    replace_weights(model, plan)
    for weight, place in plan:
        if isinstance(place, Place):
            stand_in = vars(weight.owner)[place.attribute]
            parts = codes[id(weight)].parts
            for variable, entries in zip(stand_in.parts, parts, strict=True):
                streams.put(variable, entries)
    return lambda: _changes(plan, codes)


def losses(
    plan: WeightPlan, streams: Streams, name: str = "quantize"
) -> list[WeightChange]:
    """Return what a plan would do to the weights of a model, which stays as it is.

    Args:
        plan: of its weights; the model may be described.
        streams: tell what weights hold.
        name: of what is tried, for the progress.
    """
    codes = _codes_of(plan, streams)
    parts = [each.parts[0] for each in codes.values()]
    progress = Progress(f"trying {name}", sum(each.nbytes for each in parts))
    for part in parts:
        deque(progress.of(part.pieces()), maxlen=0)
    return _changes(plan, codes)


def _codes_of(plan: WeightPlan, streams: Streams) -> dict[int, "_Codes"]:
    """Return the codes of the weights that a plan stores, by the id of the `Weight`."""
    return {
        id(weight): _Codes(streams.readable(weight.variable), place.coding, weight.path)
        for weight, place in plan
        if isinstance(place, Place)
    }


def _changes(plan: WeightPlan, codes: dict[int, "_Codes"]) -> list[WeightChange]:
    """Return what becomes of every weight of a plan, once its codes have been read."""
    changes = []
    for weight, place in plan:
        if isinstance(place, str):
            changes.append(account(weight, "quantize", place, changed=False))
            continue
        found = codes[id(weight)]
        ratio, all_zero = decibels(found.signal, found.noise), not found.source.nonzero
        changes.append(stored_change(weight, place, ratio, all_zero=all_zero))
    return changes


Cut = tuple[slice, slice]
"""Entries that lie in a row: some rows of one lead, or all rows of some leads."""

Counts = tuple[float, float, int, int]
"""Sums of squares of entries and of what is lost of them; how many entries are not zero
before, and after."""


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
        self.signal = self.noise = 0.0
        self._scales: tuple[np.ndarray, ...] | None = None
        shape, axes = source.shape, coding.axes
        first, end = (axes[0], axes[-1] + 1) if axes else (0, 0)
        self._sizes = [
            math.prod(x) for x in (shape[:first], shape[first:end], shape[end:])
        ]
        is_side_by_side = bool(axes) and axes == tuple(range(first, end))
        self._is_in_rows = is_side_by_side and source.size > 0
        rows = coding.rows(shape) if self._is_in_rows else None
        # Rows in a group that has a scale of its own, None for all rows.
        self._length = None if rows is None or rows.groups == 1 else rows.length
        stored = coding.stored(shape).parts
        self.parts: list[Entries] = [_Part(self, n, *p) for n, p in enumerate(stored)]

    def pieces(self, part: int) -> Iterator[np.ndarray]:
        """Yield the entries of codes (0), scales (1) or zero points (2)."""
        if self.coding.bits == 16:
            yield from self._counted(self.source.map(self._halved, None))
        elif not self._is_in_rows:
            yield self._whole()[part].reshape(-1)
        elif part:
            dtype = self.parts[part].dtype  # of scales, which are float32 so far
            yield self._all_scales()[part - 1].reshape(-1).astype(dtype, copy=False)
        else:
            self._all_scales()
            yield from self._counted(in_order(self._coded, self._cuts()))

    def _counted(
        self, pieces: Iterator[tuple[np.ndarray, Counts]]
    ) -> Iterator[np.ndarray]:
        self.signal = self.noise = 0.0
        before = after = 0
        for codes, counts in pieces:
            self.signal, self.noise = self.signal + counts[0], self.noise + counts[1]
            before, after = before + counts[2], after + counts[3]
            yield codes
        self.source.nonzero, self.parts[0].nonzero = before, after

    def _halved(self, cut: tuple[int, int]) -> tuple[np.ndarray, Counts]:
        values = finite(self.source.read(*cut), self._path)
        halved = self.coding.encode(values).codes
        exact = values.astype(np.float32, copy=False)
        lost = exact - halved.astype(np.float32)
        before, after = (int(np.count_nonzero(x)) for x in (values, halved))
        return halved, (_power(exact), _power(lost), before, after)

    def _whole(self) -> tuple[np.ndarray, ...]:
        """Return the parts of a weight that is no rows of channels, read as a whole."""
        if self._scales is None:
            values = finite(self.source.whole(), self._path)
            coded = self.coding.encode(values)
            rounded = self.coding.decoded(coded, values.shape)
            exact = values.astype(np.float32, copy=False)
            self.signal, self.noise = _power(exact), _power(exact - rounded)
            self.parts[0].nonzero = int(np.count_nonzero(rounded))
            self._scales = coded.parts
        return self._scales

    def _cuts(self) -> Iterator[Cut]:
        leads, rows, trail = self._sizes
        if rows * trail <= PIECE:
            step = PIECE // (rows * trail)
            for first in range(0, leads, step):
                yield slice(first, min(first + step, leads)), slice(0, rows)
            return
        unit = self._length or 8  # so many rows may share bytes
        step = max(PIECE // (trail * unit), 1) * unit
        for lead in range(leads):
            for row in range(0, rows, step):
                yield slice(lead, lead + 1), slice(row, min(row + step, rows))

    def _read(self, cut: Cut) -> np.ndarray:
        """Return entries as (leads, groups, rows of a group, trail), float32."""
        _, rows, trail = self._sizes
        leads, own = cut
        start = (leads.start * rows + own.start) * trail
        shape = (leads.stop - leads.start, own.stop - own.start, trail)
        values = self.source.read(start, start + math.prod(shape))
        values = values.astype(np.float32, copy=False).reshape(shape)
        length = self._length or shape[1]
        missing = -shape[1] % length
        if missing:
            values = np.pad(values, ((0, 0), (0, missing), (0, 0)))
        return values.reshape(shape[0], -1, length, trail)

    def _part_of(self, array: np.ndarray, cut: Cut) -> np.ndarray:
        """Return the scales of some entries, which broadcast against them."""
        if self.coding.granularity == "tensor":
            return array
        leads, rows = cut
        if not self._length:
            return array[leads]
        groups = slice(rows.start // self._length, -(-rows.stop // self._length))
        return array[leads, groups]

    def _all_scales(self) -> tuple[np.ndarray, ...]:
        """Return the scales, and zero points if there are any, of the whole weight."""
        if self._scales is None:
            low, high = self._ends()
            if not (np.isfinite(low).all() and np.isfinite(high).all()):
                finite(self.source.whole(), self._path)
            if self.coding.symmetric:
                self._scales = (self.coding.scales_of(np.maximum(high, -low)),)
            else:
                self._scales = affine_scales_of(low, high, self.coding.bits)
            if self.coding.scale_dtype != "float32":
                scales, *zeros = self._scales
                self._scales = (short_scales(scales), *zeros)
        return self._scales

    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the ranges of what shares a scale, zero in them."""
        leads, rows, trail = self._sizes
        groups = -(-rows // self._length) if self._length else 1
        is_tensor = self.coding.granularity == "tensor"
        shape = (1, 1, 1, 1) if is_tensor else (leads, groups, 1, trail)
        low, high = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        axis = None if is_tensor else 2

        def ends(cut: Cut) -> tuple[Cut, np.ndarray, np.ndarray]:
            values = self._read(cut)
            least = values.min(axis=axis, keepdims=True)
            return cut, least, values.max(axis=axis, keepdims=True)

        for cut, least, most in in_order(ends, self._cuts()):
            lower, upper = self._part_of(low, cut), self._part_of(high, cut)
            np.minimum(lower, least, out=lower)
            np.maximum(upper, most, out=upper)
        return low, high

    def _coded(self, cut: Cut) -> tuple[np.ndarray, Counts]:
        values, bits = self._read(cut), self.coding.bits
        scales, *zeros = (self._part_of(each, cut) for each in self._all_scales())
        if zeros:
            codes = affine_codes_of(values, scales, zeros[0], bits)
        else:
            codes = self.coding.codes_of(values, scales)
        after = int(np.count_nonzero(codes != zeros[0] if zeros else codes))
        before = int(np.count_nonzero(values))
        if zeros:
            lost = dequantize(codes, scales, *zeros)
        else:
            lost = self.coding.values_of(codes, scales)
        np.subtract(values, lost, out=lost)
        counts = _power(values), _power(lost), before, after
        if self.coding.rows(self.source.shape) is not None:
            codes = pack(codes, 2, bits)
        return codes.reshape(-1), counts


def _power(values: np.ndarray) -> float:
    """Return the sum of squares of entries, float32."""
    flat = values.reshape(-1)
    found = float(flat @ flat)
    if math.isfinite(found):
        return found
    return float(np.square(flat, dtype=np.float64).sum())


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
