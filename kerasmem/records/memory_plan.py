"""The memory plan of a training step: kept, recomputed and 8-bit activations."""

from dataclasses import dataclass
from typing import Annotated

from kerasmem.records.plain import JsonRecord
from kerasmem.records.post_mortem import Remedy
from kerasmem.records.table import Table, as_text, terminal_table
from kerasmem.units import format_bytes

KEPT, RECOMPUTED, EIGHT_BITS = WAYS = ("kept", "recomputed", "8 bits")
"""Strategies of the activations of consecutive layers."""


@dataclass(frozen=True)
class Input:
    """An input of a model.

    The shape includes the batch axis.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Piece:
    """Consecutive layers and the strategy of their activations.

    Args:
        layers: Names of layers and operations in execution order.
        way: One of `WAYS`. With `"recomputed"`, only the inputs are saved.
        kept_bytes: Bytes saved for the backward pass of one micro-batch.
        recomputed_bytes: Bytes allocated only while the gradients of these layers are
            computed. 0 if nothing is recomputed.
    """

    layers: tuple[str, ...]
    way: Annotated[str, WAYS]
    kept_bytes: int
    recomputed_bytes: int = 0

    @property
    def recomputed(self) -> bool:
        """Whether only the inputs are saved and the rest is recomputed."""
        return self.way == RECOMPUTED


@dataclass(frozen=True)
class PlanOption:
    """Another plan for the same step.

    Args:
        how: The strategy in words.
        peak_bytes: Estimated peak in bytes.
        extra_time: Estimated additional time, relative to the plain step.
    """

    how: str
    peak_bytes: int
    extra_time: float


@dataclass(frozen=True)
class PlanRecord(JsonRecord):
    """Plan of a training step, with estimated costs.

    Args:
        model_name: Name of the model, or of the nested model with most activations.
        batch_size: Samples per update.
        micro_batches: Number of micro-batches per update.
        pieces: Layers in order.
        peak_bytes: Estimated peak of a training step in bytes.
        plain_peak_bytes: Estimated peak without the plan in bytes.
        extra_time: Estimated additional time of a step, relative to the plain step.
        faster: The next faster plan, which needs more memory. None if there is none.
        smaller: The next plan with a peak that is at least 10 % lower, or None.
        offers: Settings that change the training and need less memory with this plan.
        path: Indices of the calls that lead to the nested model.
        ranges: First and last index plus one of each recomputed range of calls.
        ranges_in_8_bits: The same for activations stored in 8 bits. A recomputed range
            in such a range has its inputs in 8 bits.
        inputs: Inputs of a subclassed model.
    """

    model_name: str
    batch_size: int
    micro_batches: int
    pieces: tuple[Piece, ...]
    peak_bytes: int
    plain_peak_bytes: int
    extra_time: float
    faster: PlanOption | None = None
    smaller: PlanOption | None = None
    offers: tuple[Remedy, ...] = ()
    path: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    ranges_in_8_bits: tuple[tuple[int, int], ...] = ()
    inputs: tuple[Input, ...] = ()

    @property
    def saved_bytes(self) -> int:
        """Estimated reduction of the peak in bytes."""
        return self.plain_peak_bytes - self.peak_bytes

    @property
    def changes_activations(self) -> bool:
        """Whether activations are recomputed or stored in 8 bits."""
        return self.in_8_bits or bool(self.ranges)

    @property
    def in_8_bits(self) -> bool:
        """Whether activations are stored in 8 bits."""
        return bool(self.ranges_in_8_bits)

    @property
    def how(self) -> str:
        """The strategy in words."""
        words: list[str] = []
        if self.micro_batches > 1:
            words.append(f"{self.micro_batches} micro-batches")
        calls = sum(len(piece.layers) for piece in self.pieces)
        if self.ranges:
            count = sum(len(piece.layers) for piece in self.pieces if piece.recomputed)
            words.append(f"{count} of {calls} layers recomputed")
        if self.in_8_bits:
            count = sum(end - start for start, end in self.ranges_in_8_bits)
            which = "" if count == calls else f" of {count} of {calls} layers"
            words.append(f"activations{which} in 8 bits")
        return ", ".join(words) or "unchanged"

    def table(self) -> Table:
        """Return the plan as a table with one row per piece."""
        rows = [
            (
                _names(piece),
                f"{len(piece.layers):,}",
                piece.way,
                format_bytes(piece.kept_bytes),
                format_bytes(piece.recomputed_bytes) if piece.recomputed_bytes else "",
            )
            for piece in self.pieces
        ]
        columns = ("layers", "calls", "activations", "saved", "recomputed")
        return Table(f"memory plan of {self.model_name}", columns, tuple(rows), 3)

    def sentences(self) -> list[str]:
        """Return peak, time, the next plans and the offers as sentences."""
        share = self.saved_bytes / max(1, self.plain_peak_bytes)
        lines = [
            f"{self.model_name!r} at batch size {self.batch_size}, {self.how}: a peak "
            f"of {format_bytes(self.peak_bytes)} instead of "
            f"{format_bytes(self.plain_peak_bytes)} ({share:.0%} less), a step "
            f"{self.extra_time:.0%} longer (all estimated)."
        ]
        lines += [
            f"Next {name} plan: {_option_words(option)}."
            for name, option in (("faster", self.faster), ("smaller", self.smaller))
            if option
        ]
        lines += [
            f"Not applied, because it changes the training: {offer.name}, a peak of "
            f"{format_bytes(offer.peak_bytes or 0)}. {offer.how}"
            for offer in self.offers
        ]
        return lines

    def __str__(self) -> str:
        """Return the plan as text with one line per piece."""
        first, *rest = self.sentences()
        table = as_text(terminal_table(self.table(), ""))
        return "\n".join([first, table.rstrip(), *rest])


def _names(piece: Piece) -> str:
    first, last = (piece.layers or ("",))[0], (piece.layers or ("",))[-1]
    return first if first == last else f"{first} ... {last}"


def _option_words(option: PlanOption) -> str:
    return (
        f"{option.how}, a peak of {format_bytes(option.peak_bytes)}, a step "
        f"{option.extra_time:.0%} longer"
    )
