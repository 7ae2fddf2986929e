"""The table of a comparison of runtimes, and what it found in words."""

from rich.table import Table

from kerasmem.records import RuntimeComparison, RuntimeFigures
from kerasmem.report.page.table import MISSING
from kerasmem.units import format_bytes, format_ms


def runtimes_table(comparison: RuntimeComparison, title: str = "") -> Table:
    """Return what each form costs, one line per form."""
    table = Table(title=title or None, title_justify="left")
    table.add_column("", no_wrap=True)
    sizes = comparison.batch_sizes
    for size in sizes:
        table.add_column(f"batch of {size}", justify="right")
    for name in ("file", "weights", "for a pass", "process", "outputs off by"):
        table.add_column(name, justify="right")
    for runtime in comparison.runtimes:
        cells = _cells(runtime, sizes)
        table.add_row(*cells, style="dim" if runtime.reason else None)
    return table


def missing_lines(comparison: RuntimeComparison) -> str:
    """Return why forms could not be made, one line each; `""` if all were."""
    missing = [runtime for runtime in comparison.runtimes if runtime.reason]
    return "\n".join(f"{each.name} was not made: {each.reason}" for each in missing)


def conditions_line(comparison: RuntimeComparison) -> str:
    """Return where the figures come from, in words."""
    samples = "samples of the data" if comparison.given else "random samples"
    threads = f"{comparison.threads} thread{'s' if comparison.threads > 1 else ''}"
    largest = max(comparison.batch_sizes)
    return (
        f"Times are medians, taken in turns: Keras ({comparison.backend}) on the "
        f"{comparison.device} with all its threads, LiteRT on the CPU with {threads}. "
        f"For a pass: most resident bytes during one of a batch of {largest}, on the "
        "CPU, beyond those before the model was opened; process: all of them, runtime "
        f"included. Outputs are those of {comparison.samples} {samples}, against the "
        "model as it is."
    )


def advice_lines(comparison: RuntimeComparison) -> str:
    """Return which form to use for what, one line each, and how to get those."""
    lines = [advice.sentence for advice in comparison.advice]
    advised = {advice.name for advice in comparison.advice}
    lines += [
        f"  {runtime.name}: {runtime.how}"
        for runtime in comparison.runtimes
        if runtime.name in advised
    ]
    return "\n".join(lines)


def _cells(runtime: RuntimeFigures, sizes: tuple[int, ...]) -> list[str]:
    if runtime.reason:
        return [runtime.name, "not made"]
    times = (runtime.time(size) for size in sizes)
    figures = (
        runtime.file_bytes,
        runtime.weight_bytes,
        runtime.peak_bytes,
        runtime.process_bytes,
    )
    off = runtime.difference
    return [
        runtime.name,
        *(MISSING if t is None else format_ms(t.milliseconds) for t in times),
        *(MISSING if size is None else format_bytes(size) for size in figures),
        MISSING if off is None else f"{100 * off:.2g} %",
    ]
