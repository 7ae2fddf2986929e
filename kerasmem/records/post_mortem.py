"""Why memory ran out in a training, what filled it, and what would help."""

from collections.abc import Iterator
from dataclasses import dataclass

from kerasmem.records.estimate import EstimatePart, OfParts, size_rows
from kerasmem.records.plain import JsonRecord
from kerasmem.records.tuning import MEASURED
from kerasmem.units import format_bytes


def cause_sentence(cause: "Cause") -> str:
    """Return why memory ran out, in one sentence or two."""
    device = cause.device or "The device"
    request = f"{_asked(cause)}{_by_whom(cause)}"
    if cause.kind == "input pipeline":
        return (
            f"The host's memory ran out while data was made: {request}. The model has "
            "no part in it, and smaller micro-batches do not help."
        )
    if cause.kind == "host":
        return f"The host's memory ran out, not the device's: {request}."
    if cause.kind == "one tensor":
        limit = format_bytes(cause.limit_bytes or 0)
        return f"One tensor alone is more than {device} has: {request}, of {limit}."
    if cause.kind == "fragmentation":
        return (
            f"{device} had enough free memory, but not in one piece: {request}"
            f"{_free(cause)}."
        )
    return f"{device} had too little memory: {request}{_in_use(cause)}."


def moment_words(post_mortem: "PostMortem") -> str:
    """Return when it happened, and with how many samples."""
    when = [] if post_mortem.epoch is None else [f"epoch {post_mortem.epoch + 1}"]
    when += [] if post_mortem.step is None else [f"step {post_mortem.step + 1:,}"]
    batch = (
        f"batch of {post_mortem.batch_size:,}"
        if post_mortem.batch_size
        else "unknown batch"
    )
    if post_mortem.micro_batches > 1:
        batch += (
            f" in {post_mortem.micro_batches:,} micro-batches of "
            f"{post_mortem.micro_batch_size:,}"
        )
    return ", ".join([*when, batch])


def fitting_sentence(post_mortem: "PostMortem") -> str:
    """Return how many micro-batches would fit, `""` if that is beside the point."""
    if post_mortem.cause.kind in ("input pipeline", "host"):
        return ""
    count = post_mortem.fitting_micro_batches
    if count is None:
        if post_mortem.cause.limit_bytes is None:
            return "How many micro-batches would fit is unknown: nobody told the limit."
        if not post_mortem.batch_size:
            return (
                "How many micro-batches would fit is unknown, as is the batch's size."
            )
        return "No number of micro-batches is estimated to fit."
    size = -(-post_mortem.batch_size // count)
    peak = format_bytes(post_mortem.fitting_bytes or 0)
    if post_mortem.fitting_is_tried:
        return f"{count:,} micro-batches of {size:,} fit: tried, with a peak of {peak}."
    return (
        f"{count:,} micro-batches of {size:,} should fit: their peak is estimated at "
        f"{peak}."
    )


def remedy_words(remedy: "Remedy") -> str:
    """Return what a remedy takes off the peak and whether that is enough, or `""`."""
    if remedy.saves_bytes is None:
        return ""
    less = f"about {format_bytes(remedy.saves_bytes)} less"
    if remedy.fits is None:
        return f"{less} (estimated)"
    peak = format_bytes(remedy.peak_bytes or 0)
    enough = "it should fit" if remedy.fits else "not enough by itself"
    return f"{less}, a peak of {peak} (estimated): {enough}"


def peak_words(post_mortem: "PostMortem") -> str:
    """Return the peak, and whether it was measured."""
    if post_mortem.peak_bytes is None:
        return "unknown"
    how = (
        "measured"
        if post_mortem.is_measured
        else f"estimated, {post_mortem.peak_source}"
    )
    return f"{format_bytes(post_mortem.peak_bytes)} ({how})"


def _parts_of_peak(post_mortem: "PostMortem", layers: int) -> Iterator[str]:
    if post_mortem.peak_bytes is None:
        return
    yield f"in use at the peak: {peak_words(post_mortem)}"
    sizes = post_mortem.by_category().items()
    yield from size_rows((name.replace("_", " "), size) for name, size in sizes)
    largest = post_mortem.layer_rows(layers)
    if largest:
        yield "by layer:"
        yield from largest
    if post_mortem.other_bytes:
        yield f"beside it, all the time: {format_bytes(post_mortem.other_bytes)}"


def _what_would_help(post_mortem: "PostMortem") -> Iterator[str]:
    sentence = fitting_sentence(post_mortem)
    if sentence:
        yield sentence
    for remedy in post_mortem.remedies:
        words = remedy_words(remedy)
        yield f"{remedy.name}{f', {words}' if words else ''}. {remedy.how}"


def _asked(cause: "Cause") -> str:
    if cause.requested_bytes is None:
        return "some memory was asked for"
    return f"{format_bytes(cause.requested_bytes)} were asked for in one piece"


def _by_whom(cause: "Cause") -> str:
    whose = [] if not cause.operation else [cause.operation]
    whose += [] if not cause.layer else [f"layer {cause.layer}"]
    whose += [] if cause.phase == "unknown" else [cause.phase]
    return f" ({', '.join(whose)})" if whose else ""


def _in_use(cause: "Cause") -> str:
    used_bytes, limit = cause.in_use_bytes, cause.limit_bytes
    of = "" if limit is None else f" of {format_bytes(limit)}"
    if used_bytes is not None:
        return f" when {format_bytes(used_bytes)}{of} were in use"
    if cause.peak_bytes is not None:
        return f"; at the fullest {format_bytes(cause.peak_bytes)}{of} were in use"
    return f"; the limit is {format_bytes(limit)}" if limit is not None else ""


def _free(cause: "Cause") -> str:
    used_bytes = cause.peak_bytes if cause.in_use_bytes is None else cause.in_use_bytes
    if used_bytes is None or cause.limit_bytes is None:
        return ""
    free = f" when {format_bytes(cause.limit_bytes - used_bytes)} were free"
    if cause.largest_free_bytes is None:
        return free
    return f"{free}, at most {format_bytes(cause.largest_free_bytes)} in one piece"


CAUSES = ("device", "fragmentation", "one tensor", "input pipeline", "host")
"""What can be too small: the device's memory, its largest free piece, the whole device
for one tensor alone, the host's memory while data is made, or the host's otherwise."""

TORN = "torn state"
"""Kind of an `OutOfMemoryError` after which the model is not as before the step."""


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
class PostMortem(OfParts, JsonRecord):
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
            estimated. True only in files of earlier versions, which tried them.
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

    def text(self, layers: int = 10) -> str:
        """Return all of it in words, with so many of the largest layers."""
        lines = [
            f"out of memory: {self.model} ({self.backend}), {moment_words(self)}",
            f"  {cause_sentence(self.cause)}",
            f"  {self.cause.error}: {self.cause.message}",
            *_parts_of_peak(self, layers),
            "what would help:",
            *(f"  {line}" for line in _what_would_help(self)),
        ]
        if self.left_out:
            lines += ["not found out:", *(f"  {line}" for line in self.left_out)]
        return "\n".join(lines)
