"""A post-mortem in words."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kerasmem.units import format_bytes

if TYPE_CHECKING:
    from kerasmem.records.post_mortem import Cause, PostMortem, Remedy


def cause_sentence(cause: "Cause") -> str:
    """Return why memory ran out, in one sentence or two."""
    device = cause.device or "The device"
    asked = f"{_asked(cause)}{_by_whom(cause)}"
    if cause.kind == "input pipeline":
        return (
            f"The host's memory ran out while data was made: {asked}. The model has no "
            "part in it, and smaller micro-batches do not help."
        )
    if cause.kind == "host":
        return f"The host's memory ran out, not the device's: {asked}."
    if cause.kind == "one tensor":
        limit = format_bytes(cause.limit_bytes or 0)
        return f"One tensor alone is more than {device} has: {asked}, of {limit}."
    if cause.kind == "fragmentation":
        return (
            f"{device} had enough free memory, but not in one piece: {asked}"
            f"{_free(cause)}."
        )
    return f"{device} had too little memory: {asked}{_in_use(cause)}."


def moment_words(found: "PostMortem") -> str:
    """Return when it happened, and with how many samples."""
    when = [] if found.epoch is None else [f"epoch {found.epoch + 1}"]
    when += [] if found.step is None else [f"step {found.step + 1:,}"]
    batch = f"batch of {found.batch_size:,}" if found.batch_size else "unknown batch"
    if found.micro_batches > 1:
        batch += (
            f" in {found.micro_batches:,} micro-batches of {found.micro_batch_size:,}"
        )
    return ", ".join([*when, batch])


def fitting_sentence(found: "PostMortem") -> str:
    """Return how many micro-batches would fit, `""` if that is beside the point."""
    if found.cause.kind in ("input pipeline", "host"):
        return ""
    count = found.fitting_micro_batches
    if count is None:
        if found.cause.limit_bytes is None:
            return "How many micro-batches would fit is unknown: nobody told the limit."
        if not found.batch_size:
            return (
                "How many micro-batches would fit is unknown, as is the batch's size."
            )
        return "No number of micro-batches is estimated to fit."
    size = -(-found.batch_size // count)
    peak = format_bytes(found.fitting_bytes or 0)
    if found.fitting_is_tried:
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


def post_mortem_text(found: "PostMortem", layers: int = 10) -> str:
    """Return a post-mortem as text of several lines.

    Args:
        found: what was found out.
        layers: number of layers to list, from 0.
    """
    lines = [
        f"out of memory: {found.model} ({found.backend}), {moment_words(found)}",
        f"  {cause_sentence(found.cause)}",
        f"  {found.cause.error}: {found.cause.message}",
        *_alive(found, layers),
        "what would help:",
        *(f"  {line}" for line in _help(found)),
    ]
    if found.left_out:
        lines += ["not found out:", *(f"  {line}" for line in found.left_out)]
    return "\n".join(lines)


def peak_words(found: "PostMortem") -> str:
    """Return the peak, and whether it was measured."""
    if found.peak_bytes is None:
        return "unknown"
    how = "measured" if found.is_measured else f"estimated, {found.peak_source}"
    return f"{format_bytes(found.peak_bytes)} ({how})"


def _alive(found: "PostMortem", layers: int) -> Iterator[str]:
    if found.peak_bytes is None:
        return
    yield f"in use at the peak: {peak_words(found)}"
    categories = {
        name.replace("_", " "): size for name, size in found.by_category().items()
    }
    yield from _rows(categories)
    largest = list(found.by_layer().items())[:layers]
    if largest:
        yield "by layer:"
        yield from _rows({layer or "(no layer)": size for layer, size in largest})
    if found.other_bytes:
        yield f"beside it, all the time: {format_bytes(found.other_bytes)}"


def _help(found: "PostMortem") -> Iterator[str]:
    sentence = fitting_sentence(found)
    if sentence:
        yield sentence
    for remedy in found.remedies:
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
    used, limit = cause.in_use_bytes, cause.limit_bytes
    of = "" if limit is None else f" of {format_bytes(limit)}"
    if used is not None:
        return f" when {format_bytes(used)}{of} were in use"
    if cause.peak_bytes is not None:
        return f"; at the fullest {format_bytes(cause.peak_bytes)}{of} were in use"
    return f"; the limit is {format_bytes(limit)}" if limit is not None else ""


def _free(cause: "Cause") -> str:
    used = cause.peak_bytes if cause.in_use_bytes is None else cause.in_use_bytes
    if used is None or cause.limit_bytes is None:
        return ""
    free = f" when {format_bytes(cause.limit_bytes - used)} were free"
    if cause.largest_free_bytes is None:
        return free
    return f"{free}, at most {format_bytes(cause.largest_free_bytes)} in one piece"


def _rows(sizes: Mapping[str, int]) -> Iterable[str]:
    width = max(map(len, sizes), default=0)
    return (f"  {name:<{width}}  {format_bytes(n):>10}" for name, n in sizes.items())
