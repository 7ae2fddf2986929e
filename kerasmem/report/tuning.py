"""The tables of a tuning, and what it found in words."""

from rich.table import Table

from kerasmem.records import MEASURED, Tuning, VariantFigures
from kerasmem.units import format_bytes, format_ms

_BUSY = 0.2
_WORTH_TELLING = 0.97  # steps whose peaks are so much apart are told as a range


def variants_table(tuning: Tuning, title: str = "") -> Table:
    """Return peak and step time under each option, one line per run."""
    table = Table(title=title or None, title_justify="left")
    table.add_column("", overflow="fold")
    for name in ("peak", "step", "eight in ten steps", "first step", "samples/s"):
        table.add_column(name, justify="right")
    table.add_column("Pareto front")
    for variant in tuning.variants:
        table.add_row(*_cells(variant), style="dim" if variant.reason else None)
    return table


def odd_sizes_table(tuning: Tuning) -> Table:
    """Return the sizes that miss a GPU's tensor cores, with the next that do not."""
    table = Table(
        title="sizes that a GPU's tensor cores handle less than fully",
        title_justify="left",
    )
    table.add_column("layer", overflow="fold")
    table.add_column("size")
    for name in ("now", "next for float16, bfloat16", "next for TF32 (float32)"):
        table.add_column(name, justify="right")
    for odd in tuning.odd_sizes:
        tf32 = "fits" if odd.next_tf32 == odd.size else str(odd.next_tf32)
        layer = odd.layer or "(the batch)"
        table.add_row(layer, odd.dimension, str(odd.size), str(odd.next_16_bit), tf32)
    return table


def failure_lines(tuning: Tuning) -> str:
    """Return why options did not run, one line each; `""` if all did."""
    failed = [variant for variant in tuning.variants if variant.reason]
    return "\n".join(f"{v.name} did not run: {v.reason}" for v in failed)


def spread_line(tuning: Tuning) -> str:
    """Return where the figures come from and how much they are worth, in words."""
    lines = ["Peak and step are of the steps after the first, each run on its own."]
    lines += _about_estimates(tuning)
    if tuning.noise is not None:
        lines.append(
            f"As compiled ran twice; the times differ by {100 * tuning.noise:.1f} %."
        )
        if tuning.noise > _BUSY:
            lines.append(
                "The machine did other work, it seems: for better times, run it again "
                "when it is idle."
            )
    return " ".join(lines)


def _about_estimates(tuning: Tuning) -> list[str]:
    by: dict[str, list[str]] = {}
    for variant in tuning.variants:
        if variant.peak_source not in (None, MEASURED):
            by.setdefault(str(variant.peak_source), []).append(variant.name)
    if not by:
        return []
    first, *others = by
    lines = [
        f"The peaks are estimated (method {first!r}), not measured: {tuning.backend} "
        f"does not count on a {tuning.device}."
    ]
    lines += [
        f"That of {', '.join(by[method])} is by another method ({method!r}), and is "
        "not compared with the others."
        for method in others
    ]
    return lines


def retracing_lines(tuning: Tuning) -> str:
    """Return how often the step was traced again, and why, in words."""
    lines = [_counted(tuning)]
    if tuning.open_inputs:
        names = ", ".join(map(repr, tuning.open_inputs))
        lines.append(
            f"  The length of {names} is open: the step is compiled anew for every "
            "length that comes, so pad to a few."
        )
    return "\n".join(lines)


def _counted(tuning: Tuning) -> str:
    if tuning.not_counted:
        return f"Retracing: not counted, {tuning.not_counted}."
    steps = tuning.traced_steps
    what = f"{len(steps)} steps of a fit"
    if steps[-1].samples != steps[0].samples:
        what += f" with batches of {steps[0].samples} and a last one of "
        what += f"{steps[-1].samples} samples"
    lines = [f"Retracing: {len(tuning.retraces) or 'none'} in {what}."]
    lines += [
        f"  epoch {retrace.epoch + 1}, batch {retrace.batch + 1}: {retrace.cause} "
        f"(cost {_time(retrace.cost_ms)})"
        for retrace in tuning.retraces
    ]
    return "\n".join(lines)


def _cells(variant: VariantFigures) -> list[str]:
    if variant.reason:
        return [variant.name, "did not run"]
    return [
        variant.name,
        _peak(variant),
        _time(variant.step_ms),
        f"{_time(variant.step_low_ms)} to {_time(variant.step_high_ms)}",
        _time(variant.first_step_ms),
        f"{variant.samples_per_second or 0:,.0f}",
        "yes" if variant.on_front else "",
    ]


def _peak(variant: VariantFigures) -> str:
    if variant.peak_bytes is None:
        return "unknown"
    low, high = variant.peak_low_bytes or 0, variant.peak_bytes
    if variant.peak_source != MEASURED:
        return f"{format_bytes(high)} est."
    if low < _WORTH_TELLING * high:
        return f"{format_bytes(low)} to {format_bytes(high)}"
    return format_bytes(high)


def _time(milliseconds: float | None) -> str:
    return format_ms(milliseconds or 0.0)
