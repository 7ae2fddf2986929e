"""Records of out-of-memory errors: the cause, the memory in use, the remedies."""

from collections.abc import Iterator
from dataclasses import dataclass

from kerasmem.records.estimate import EstimatePart, OfParts, size_rows
from kerasmem.records.plain import JsonRecord
from kerasmem.records.tuning import MEASURED
from kerasmem.units import format_bytes


def cause_sentence(cause: "Cause") -> str:
    """Returns the cause in one or two sentences."""
    device = cause.device or "The device"
    request = f"{_asked(cause)}{_by_whom(cause)}"
    if cause.kind == "input pipeline":
        return (
            f"The host's memory ran out in the input pipeline: {request}. The model is "
            "not the cause, and smaller micro-batches do not help."
        )
    if cause.kind == "host":
        return f"The host's memory ran out, not the device's: {request}."
    if cause.kind == "one tensor":
        limit = format_bytes(cause.limit_bytes or 0)
        return f"{device} has only {limit}, less than a single tensor: {request}."
    if cause.kind == "fragmentation":
        return (
            f"{device} has enough free memory, but it is fragmented: {request}"
            f"{_free(cause)}."
        )
    return f"{device} had too little memory: {request}{_in_use(cause)}."


def moment_words(post_mortem: "PostMortem") -> str:
    """Returns the epoch, the step and the batch size in words."""
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
    """Returns the number of micro-batches that fit, or `""` if this cannot help."""
    if post_mortem.cause.kind in ("input pipeline", "host"):
        return ""
    count = post_mortem.fitting_micro_batches
    if count is None:
        if post_mortem.cause.limit_bytes is None:
            return "The number of micro-batches that fits is unknown: no memory limit."
        if not post_mortem.batch_size:
            return "The number of micro-batches that fits is unknown: no batch size."
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
    """Returns the savings of a remedy and whether they suffice, or `""` if unknown."""
    if remedy.saves_bytes is None:
        return ""
    less = f"about {format_bytes(remedy.saves_bytes)} less"
    if remedy.fits is None:
        return f"{less} (estimated)"
    peak = format_bytes(remedy.peak_bytes or 0)
    enough = "it should fit" if remedy.fits else "not enough by itself"
    return f"{less}, a peak of {peak} (estimated): {enough}"


def peak_words(post_mortem: "PostMortem") -> str:
    """Returns the peak, and whether it is measured or estimated."""
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
        yield f"also in use between steps: {format_bytes(post_mortem.other_bytes)}"


def _what_would_help(post_mortem: "PostMortem") -> Iterator[str]:
    sentence = fitting_sentence(post_mortem)
    if sentence:
        yield sentence
    for remedy in post_mortem.remedies:
        words = remedy_words(remedy)
        yield f"{remedy.name}{f', {words}' if words else ''}. {remedy.how}"


def _asked(cause: "Cause") -> str:
    if cause.requested_bytes is None:
        return "an allocation of unknown size failed"
    return f"an allocation of {format_bytes(cause.requested_bytes)} failed"


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
        return f"; the peak was {format_bytes(cause.peak_bytes)}{of}"
    return f"; the limit is {format_bytes(limit)}" if limit is not None else ""


def _free(cause: "Cause") -> str:
    used_bytes = cause.peak_bytes if cause.in_use_bytes is None else cause.in_use_bytes
    if used_bytes is None or cause.limit_bytes is None:
        return ""
    free = f" when {format_bytes(cause.limit_bytes - used_bytes)} were free"
    if cause.largest_free_bytes is None:
        return free
    return f"{free}; largest free block {format_bytes(cause.largest_free_bytes)}"


CAUSES = ("device", "fragmentation", "one tensor", "input pipeline", "host")
"""Resources that can be too small. `"device"` is the device's memory, `"fragmentation"`
its largest free block. `"one tensor"` is the device's memory for a single tensor.
`"input pipeline"` and `"host"` are the host's memory, in the pipeline or elsewhere."""

TORN = "torn state"
"""Kind of an `OutOfMemoryError` after which the model's state differs from before the
step."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Cause of an out-of-memory error: the failed allocation. `None` means unknown.

    Args:
        kind: One of `CAUSES`.
        error: Class of the framework's error, such as `"ResourceExhaustedError"`.
        message: Message of the framework's error, in one line.
        requested_bytes: Size of the failed allocation.
        shape: Shape of the tensor, such as `"[64,128]"`, or `""` if unknown.
        dtype: Data type in the framework, or `""` if unknown.
        operation: Operation in the framework, or `""` if unknown.
        layer: Path of the layer that owns the operation.
        phase: Phase of the step, one of `records.PHASES`.
        device: Name of the device in the framework.
        limit_bytes: Memory limit of the allocator.
        in_use_bytes: Bytes in use at the failed allocation.
        largest_free_bytes: Largest free block at the failed allocation.
        peak_bytes: Peak bytes in use since the last reset.
        in_use_after_bytes: Bytes in use when the error was handled. Part of the failed
            step is already freed.
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
    """One way to reduce the memory.

    Args:
        name: Name of the technique, such as `"mixed precision"`.
        how: Code or instructions.
        saves_bytes: Estimated reduction of the peak, or `None` if unknown.
        peak_bytes: Estimated peak with the remedy, or `None` if unknown.
        fits: Whether a step with only this remedy is estimated to fit. `None` without a
            limit.
    """

    name: str
    how: str
    saves_bytes: int | None = None
    peak_bytes: int | None = None
    fits: bool | None = None


@dataclass(frozen=True, kw_only=True)
class PostMortem(OfParts, JsonRecord):
    """Report of one out-of-memory error. Holds no tensors.

    Args:
        cause: The cause.
        model: Name of the model.
        backend: Name of the Keras backend.
        batch_size: Number of samples per update (the effective batch), or 0 if unknown.
        micro_batches: Number of micro-batches per batch when the error occurred.
            Defaults to 1.
        epoch: Index of the epoch, from 0, or `None` if unknown.
        step: Index of the step in the whole fit, from 0, or `None` if unknown.
        peak_bytes: Peak bytes in use in such a step, or `None` if unknown.
        peak_source: `"measured"`, or the method of the estimate, such as `"analytic"`.
            `None` without a peak.
        parts: Bytes in use at the peak by category and layer. The sum is `peak_bytes`.
        variable_bytes: Bytes of the variables of the model and the optimizer that
            existed.
        other_bytes: Other bytes in use between steps, such as other models or data.
            `None` if the framework does not count them.
        fitting_micro_batches: Smallest number of micro-batches that fits, or `None` if
            none fits or the number is unknown.
        fitting_bytes: Peak with this number of micro-batches, or `None`.
        fitting_is_tried: Whether such steps were executed. `True` only in files of
            earlier versions; otherwise both numbers are estimated.
        remedies: Other remedies. Sufficient ones come first, then the largest
            reductions.
        left_out: Facts that could not be determined, in words.
        process: Index of the process. Defaults to 0.
        time: Seconds since 1970 (UTC).
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
        """Maximum number of samples per forward pass."""
        return -(-self.batch_size // self.micro_batches)

    @property
    def is_measured(self) -> bool:
        """Whether the peak is measured. If `False`, it is estimated."""
        return self.peak_source == MEASURED

    def text(self, layers: int = 10) -> str:
        """Returns the report as text, with at most `layers` of the largest layers."""
        lines = [
            f"out of memory: {self.model} ({self.backend}), {moment_words(self)}",
            f"  {cause_sentence(self.cause)}",
            f"  {self.cause.error}: {self.cause.message}",
            *_parts_of_peak(self, layers),
            "remedies:",
            *(f"  {line}" for line in _what_would_help(self)),
        ]
        if self.left_out:
            lines += ["undetermined:", *(f"  {line}" for line in self.left_out)]
        return "\n".join(lines)
