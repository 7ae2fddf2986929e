"""Why memory ran out in a training, what filled it, and what would help."""

import json
from dataclasses import asdict, dataclass

from kerasmem.records.estimate import EstimatePart, largest_first
from kerasmem.records.plain import read_json, record_from
from kerasmem.records.post_mortem_words import post_mortem_text
from kerasmem.records.tuning import MEASURED

CAUSES = ("device", "fragmentation", "one tensor", "input pipeline", "host")
"""What can be too small: the device's memory, its largest free piece, the whole device
for one tensor alone, the host's memory while data is made, or the host's otherwise."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why memory ran out: the request that was refused. What nobody told is None.

    Args:
        kind: one of `CAUSES`.
        error: class of the framework's error, such as `"ResourceExhaustedError"`.
        message: what that said, in one line.
        requested_bytes: bytes that were asked for in one piece.
        shape: shape of the tensor, such as `"[64,128]"`, `""` if unknown.
        dtype: type of its entries, by the framework's name; `""` if unknown.
        operation: the framework's name of the operation that asked, `""` if unknown.
        layer: path of the layer that the operation belongs to.
        phase: what the step was doing: one of `records.PHASES`.
        device: the framework's name of the device.
        limit_bytes: most bytes that the allocator may have of the device.
        in_use_bytes: bytes in use when the request was refused.
        largest_free_bytes: largest piece that could have been had at that moment.
        peak_bytes: most bytes in use since the peak was last reset.
        in_use_after_bytes: bytes in use when the error was looked at, when part of the
            failed step was freed already.
    """

    kind: str
    error: str
    message: str
    requested_bytes: int | None = None
    shape: str = ""
    dtype: str = ""
    operation: str = ""
    layer: str | None = None
    phase: str = "unknown"
    device: str | None = None
    limit_bytes: int | None = None
    in_use_bytes: int | None = None
    largest_free_bytes: int | None = None
    peak_bytes: int | None = None
    in_use_after_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Something that would help.

    Args:
        name: what a person calls it, such as `"mixed precision"`.
        how: what to write or do.
        saves_bytes: bytes that it takes off the peak, estimated; None where nobody can
            tell.
        peak_bytes: the peak with it, estimated; None where nobody can tell.
        fits: whether a step with it alone is estimated to fit; None without a limit.
    """

    name: str
    how: str
    saves_bytes: int | None = None
    peak_bytes: int | None = None
    fits: bool | None = None


@dataclass(frozen=True, kw_only=True)
class PostMortem:
    """What is known of one time that memory ran out. It holds no tensors.

    Args:
        cause: why.
        model: name of the model.
        backend: name of the Keras backend.
        batch_size: samples of the effective batch, which makes one update; 0 if
            unknown.
        micro_batches: into how many that was split when memory ran out; 1 for none.
        epoch: index of the epoch, from 0; None if unknown.
        step: number of the step, from 0 over the whole fit; None if unknown.
        peak_bytes: most bytes in use at once in such a step; None if unknown.
        peak_source: `"measured"`, or the method by which it was estimated, such as
            `"analytic"`; None without a peak.
        parts: what is in use at that peak; they add up to it.
        variable_bytes: bytes of the model's and the optimizer's variables that existed.
        other_bytes: bytes in use beside them between steps: other models, data; None
            where the framework does not count.
        fitting_micro_batches: the smallest number of micro-batches with which a step
            fits; None if none does or nobody can tell.
        fitting_bytes: the peak with them; None with it.
        fitting_is_tried: whether such steps ran within the limit; otherwise both are
            estimated.
        remedies: what else would help, first what fits by itself, then what brings
            most.
        left_out: what could not be found out, in words.
        process: index of the process, 0 unless several train together.
        time: seconds since 1970 (UTC).
    """

    cause: Cause
    model: str
    backend: str
    batch_size: int
    micro_batches: int = 1
    epoch: int | None = None
    step: int | None = None
    peak_bytes: int | None = None
    peak_source: str | None = None
    parts: tuple[EstimatePart, ...] = ()
    variable_bytes: int | None = None
    other_bytes: int | None = None
    fitting_micro_batches: int | None = None
    fitting_bytes: int | None = None
    fitting_is_tried: bool = False
    remedies: tuple[Remedy, ...] = ()
    left_out: tuple[str, ...] = ()
    process: int = 0
    time: float = 0.0

    @property
    def micro_batch_size(self) -> int:
        """Samples that went through the model at a time, at most."""
        return -(-self.batch_size // self.micro_batches)

    @property
    def is_measured(self) -> bool:
        """Whether the peak was measured; otherwise it is estimated."""
        return self.peak_source == MEASURED

    def by_category(self) -> dict[str, int]:
        """Return the bytes at the peak of each category that has any, most first."""
        return largest_first((part.category, part.nbytes) for part in self.parts)

    def by_layer(self) -> dict[str | None, int]:
        """Return the bytes at the peak of each layer, most first; None is no layer."""
        return largest_first((part.layer, part.nbytes) for part in self.parts)

    def text(self, layers: int = 10) -> str:
        """Return all of it in words, with so many of the largest layers."""
        return post_mortem_text(self, layers)

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "PostMortem":
        """Return the record that `to_json` made `line` of."""
        return record_from(cls, read_json(line))
