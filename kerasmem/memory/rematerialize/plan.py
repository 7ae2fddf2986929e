"""What is computed again, and what that costs."""

from dataclasses import dataclass

from kerasmem.units import format_bytes


@dataclass(frozen=True)
class Piece:
    """Layers that follow each other, and what becomes of their activations.

    Args:
        layers: names of the layers and operations, in the order in which they run.
        recomputed: whether only what enters is kept, and the rest computed again.
        kept_bytes: bytes that wait for the backward pass in any case.
        recomputed_bytes: bytes that are there only while these layers' gradients are
            computed; 0 if nothing is computed again.
    """

    layers: tuple[str, ...]
    recomputed: bool
    kept_bytes: int
    recomputed_bytes: int


@dataclass(frozen=True)
class Rematerialization:
    """A plan, with estimated costs.

    Args:
        pieces: the model, or the nested model that holds most of its activations, cut
            in order.
        model_name: name of the model that is cut.
        batch_size: samples in the batch that the bytes are for.
        peak_bytes: estimated peak of a training step.
        plain_peak_bytes: the same without the plan.
        extra_time: estimated time of what is computed again, as a share of the plain
            step's.
    """

    pieces: tuple[Piece, ...]
    model_name: str
    batch_size: int
    peak_bytes: int
    plain_peak_bytes: int
    extra_time: float

    @property
    def saved_bytes(self) -> int:
        """By how much the peak is estimated to be lower."""
        return self.plain_peak_bytes - self.peak_bytes

    def __str__(self) -> str:
        """Return the plan as text, a line per piece."""
        share = self.saved_bytes / max(1, self.plain_peak_bytes)
        lines = [
            f"{self.model_name!r} in {len(self.pieces)} pieces, at batch size "
            f"{self.batch_size}: a peak of {format_bytes(self.peak_bytes)} instead of "
            f"{format_bytes(self.plain_peak_bytes)} ({share:.0%} less), a step "
            f"{self.extra_time:.0%} longer (all estimated)."
        ]
        return "\n".join([*lines, *map(_line, self.pieces)])


def _line(piece: Piece) -> str:
    first, last = piece.layers[0], piece.layers[-1]
    names = first if first == last else f"{first} ... {last}"
    kept = format_bytes(piece.kept_bytes)
    fate = f"keeps all, {kept}"
    if piece.recomputed:
        fate = f"computes {format_bytes(piece.recomputed_bytes)} again, keeps {kept}"
    return f"  {names} ({len(piece.layers)}): {fate}"
