"""Key figures of a run, for the page and the terminal."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import rich.table

from kerasmem.records import Finding, PostMortem, Run
from kerasmem.records.post_mortem import (
    cause_sentence,
    fitting_sentence,
    moment_words,
    remedy_words,
)
from kerasmem.records.table import MISSING, Table, terminal_table
from kerasmem.report.run.epochs import IN_FIT, continued, later_fits, numbered
from kerasmem.report.run.timelines import allocator_words
from kerasmem.units import format_bytes


@dataclass(frozen=True)
class Figure:
    """One key figure, with a location, time or total as its detail."""

    label: str
    value: str
    detail: str = ""


def headline(run: Run) -> list[Figure]:
    """Returns the available key figures."""
    parts = (_out_of_memory, _model, _fits, _memory, _timeline, _gradients)
    return [figure for part in parts for figure in part(run)]


def title(run: Run) -> str:
    """Returns the title of the page: the run directory, or the model."""
    model = run.info.model if run.info else ""
    return run.name or model or "A monitored run"


def _out_of_memory(run: Run) -> Iterator[Figure]:
    if run.post_mortems:
        count = len(run.post_mortems)
        first = moment_words(run.post_mortems[0])
        times = "once" if count == 1 else f"{count:,} times"
        yield Figure("Out of memory", times, f"{'first ' * (count > 1)}{first}")


def _model(run: Run) -> Iterator[Figure]:
    if run.info and run.info.parameters:
        size = format_bytes(run.info.weight_bytes)
        yield Figure("Parameters", f"{run.info.parameters:,}", f"weights take {size}")


def _fits(run: Run) -> Iterator[Figure]:
    if later := later_fits(run):
        detail = f"the last starts with epoch {later[-1]:,}"
        yield Figure("Consecutive fits", f"{1 + len(later):,}", detail)


def _memory(run: Run) -> Iterator[Figure]:
    inside = [one for one in numbered(run.memory) if one[1].phase in IN_FIT]
    peaks = [
        (device, number, record.process)
        for number, record in inside
        for device in record.devices
    ]
    if peaks:
        device, number, process = max(peaks, key=lambda peak: peak[0].peak_bytes)
        where = f"{device.name}, epoch {number}"
        where += f", process {process}" if process else ""
        if device.counts:
            yield Figure("Device peak", format_bytes(device.peak_bytes), where)
        else:
            why = "only large requests are counted, and there were none"
            yield Figure("Device peak", MISSING, f"{device.name}: {why}")
    hosts = [(r.host.peak_bytes, n) for n, r in inside if r.host is not None]
    if hosts:
        size, number = max(hosts, key=lambda peak: peak[0])
        yield Figure("Host peak", format_bytes(size), f"epoch {number}")


def _timeline(run: Run) -> Iterator[Figure]:
    if run.timelines:
        highest = max(run.timelines, key=lambda timeline: timeline.peak_bytes)
        detail = f"{allocator_words(highest)}, of {len(highest.blocks):,} blocks"
        yield Figure("Timeline peak", format_bytes(highest.peak_bytes), detail)


def _gradients(run: Run) -> Iterator[Figure]:
    later = later_fits(run)
    begin = later[-1] - 1 if later else 0
    places = continued(record.epoch for record in run.gradients)
    norms = [
        record.norm
        for place, record in zip(places, run.gradients, strict=True)
        if place >= begin and math.isfinite(record.norm)
    ]
    if norms:
        first = f"first{' of this fit' if later else ''} {norms[0]:.3g}"
        yield Figure("Gradient norm, last", f"{norms[-1]:.3g}", first)
    bad = sum(record.nonfinite_steps for record in run.gradients)
    if bad:
        steps = sum(record.steps for record in run.gradients)
        yield Figure("Nonfinite gradients", f"{bad:,}", f"of {steps:,} steps")


def headline_table(figures: Sequence[Figure], title: str) -> rich.table.Table:
    """Returns the key figures for the terminal."""
    rows = tuple((figure.label, figure.value, figure.detail) for figure in figures)
    return terminal_table(Table(title, ("", "", ""), rows, last_texts=1))


def finding_table(findings: Sequence[Finding], most: int = 5) -> rich.table.Table:
    """Returns the first `most` findings for the terminal."""
    rows = [
        (one.severity, one.kind, f"{one.text} (epoch {one.epoch + 1})")
        for one in findings[:most]
    ]
    if len(findings) > most:
        rows.append(("", "", f"{len(findings) - most:,} more are on the page"))
    return terminal_table(Table("Findings", ("", "", ""), tuple(rows), texts=3))


def post_mortem_table(
    post_mortems: Sequence[PostMortem], most: int = 5
) -> rich.table.Table:
    """Returns causes and remedies of the first `most` post-mortems for the terminal."""
    rows = [
        (moment_words(one), cause_sentence(one.cause), "\n".join(_help(one)))
        for one in post_mortems[:most]
    ]
    if len(post_mortems) > most:
        rows.append((f"{len(post_mortems) - most:,} more", "", "they are on the page"))
    table = Table(
        "Out of memory",
        ("time", "cause", "remedies"),
        tuple(rows),
        texts=3,
        sections=tuple(range(1, len(rows))),
    )
    return terminal_table(table)


def _help(post_mortem: PostMortem) -> Iterator[str]:
    if sentence := fitting_sentence(post_mortem):
        yield sentence
    for remedy in post_mortem.remedies:
        yield ", ".join(filter(None, (remedy.name, remedy_words(remedy))))
