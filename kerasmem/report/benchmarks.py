"""Tables and texts for comparisons of training options and runtimes."""

import rich.table

from kerasmem.records import (
    MEASURED,
    RuntimeComparison,
    RuntimeFigures,
    Tuning,
    VariantFigures,
)
from kerasmem.records.table import MISSING, Table, bytes_or_missing, terminal_table
from kerasmem.units import format_bytes, format_ms

_BUSY = 0.2
_WORTH_TELLING = 0.97  # peaks with a smaller ratio are shown as a range


def variants_table(tuning: Tuning, title: str = "") -> rich.table.Table:
    """Returns the peak and the step time of each option."""
    head = ("", "peak", "step", "range of 80 % of the steps", "first step", "samples/s")
    table = Table(
        title,
        (*head, "Pareto front"),
        tuple(map(_variant_cells, tuning.variants)),
        last_texts=1,
        row_looks={n: "soft" for n, v in enumerate(tuning.variants) if v.reason},
    )
    return terminal_table(table)


def failure_lines(tuning: Tuning) -> str:
    """Returns a line for each option that failed, or `""`."""
    failures = [variant for variant in tuning.variants if variant.reason]
    return "\n".join(f"{v.name} did not run: {v.reason}" for v in failures)


def spread_line(tuning: Tuning) -> str:
    """Returns the sources and the accuracy of the figures in words."""
    lines = ["Peak and step exclude the first step. Each option ran in a new process."]
    lines += _about_estimates(tuning)
    if tuning.noise is not None:
        lines.append(
            f"As compiled ran twice; the times differ by {100 * tuning.noise:.1f} %."
        )
        if tuning.noise > _BUSY:
            lines.append(
                "The machine was probably loaded. Repeat the measurement on an idle "
                "machine."
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
        f"does not count memory on a {tuning.device}."
    ]
    lines += [
        f"The peak of {', '.join(by[method])} is from another method ({method!r}) and "
        "is not compared with the others."
        for method in others
    ]
    return lines


def _variant_cells(variant: VariantFigures) -> tuple[str, ...]:
    if variant.reason:
        return variant.name, "did not run"
    return (
        variant.name,
        _peak(variant),
        *_times(variant),
        "yes" if variant.on_front else "",
    )


def _times(variant: VariantFigures) -> tuple[str, ...]:
    return (
        _time(variant.step_ms),
        f"{_time(variant.step_low_ms)} to {_time(variant.step_high_ms)}",
        _time(variant.first_step_ms),
        f"{variant.samples_per_second or 0:,.0f}",
    )


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


def runtimes_table(comparison: RuntimeComparison, title: str = "") -> rich.table.Table:
    """Returns the figures of each form."""
    sizes = comparison.batch_sizes
    batches = (f"batch of {size}" for size in sizes)
    head = ("", *batches, "file", "weights", "for a pass", "process", "outputs off by")
    table = Table(
        title,
        head,
        tuple(_runtime_cells(runtime, sizes) for runtime in comparison.runtimes),
        row_looks={n: "soft" for n, r in enumerate(comparison.runtimes) if r.reason},
    )
    return terminal_table(table)


def missing_lines(comparison: RuntimeComparison) -> str:
    """Returns a line for each form that could not be created, or `""`."""
    missing = [runtime for runtime in comparison.runtimes if runtime.reason]
    return "\n".join(f"{each.name} was not created: {each.reason}" for each in missing)


def conditions_line(comparison: RuntimeComparison) -> str:
    """Returns the measurement conditions in words."""
    samples = "samples of the data" if comparison.with_data else "random samples"
    threads = f"{comparison.threads} thread{'s' if comparison.threads > 1 else ''}"
    largest = max(comparison.batch_sizes)
    return (
        f"Times are medians of interleaved runs: Keras ({comparison.backend}) on the "
        f"{comparison.device} with all threads, LiteRT on the CPU with {threads}. "
        f"For a pass: peak increase of resident memory with a batch of {largest}, on "
        "the CPU, relative to before the model was loaded. Process: peak resident "
        f"memory, including the runtime. Outputs on {comparison.samples} {samples} are "
        "compared with the unchanged model."
    )


def advice_lines(comparison: RuntimeComparison) -> str:
    """Returns the recommended forms, with instructions."""
    lines = [advice.sentence for advice in comparison.advice]
    names = {advice.name for advice in comparison.advice}
    lines += [
        f"  {runtime.name}: {runtime.how}"
        for runtime in comparison.runtimes
        if runtime.name in names
    ]
    return "\n".join(lines)


def _runtime_cells(runtime: RuntimeFigures, sizes: tuple[int, ...]) -> tuple[str, ...]:
    if runtime.reason:
        return runtime.name, "not created"
    times = (runtime.time(size) for size in sizes)
    figures = (
        runtime.file_bytes,
        runtime.weight_bytes,
        runtime.peak_bytes,
        runtime.process_bytes,
    )
    off = runtime.difference
    return (
        runtime.name,
        *(MISSING if t is None else format_ms(t.milliseconds) for t in times),
        *map(bytes_or_missing, figures),
        MISSING if off is None else f"{100 * off:.2g} %",
    )
