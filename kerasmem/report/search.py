"""What a search has tried, as a table."""

from rich.table import Table as TerminalTable

from kerasmem.compression.search.target import cost_value
from kerasmem.records import SearchReport
from kerasmem.report.page.table import Table
from kerasmem.report.tables import terminal_table


def trial_table(report: SearchReport) -> Table:
    """Return every trial of a search, in order; the one that was taken is bold."""
    costs = list(report.trials[0].costs)
    rows = [
        (
            trial.name,
            f"{trial.epochs} epochs" if trial.epochs else "",
            *(cost_value(name, value) for name, value in trial.costs.items()),
            f"{trial.drop:+.4f} ± {trial.drop_error:.4f}",
            "yes" if trial.on_front else "",
        )
        for trial in report.trials
    ]
    return Table(
        "What was tried",
        ("techniques", "trained", *costs, f"drop of {report.metric}", "Pareto front"),
        tuple(rows),
        texts=2,
        last_texts=1,
        note=f"{_about(report)}. The one that was taken is bold.",
        row_looks={report.chosen: "strong"},
    )


def search_table(report: SearchReport) -> TerminalTable:
    """Return the trials as a table for the terminal; the one taken is bold."""
    return terminal_table(trial_table(report), _about(report))


def _about(report: SearchReport) -> str:
    """Return what was searched for, and what the trials were judged by."""
    limits = [
        f"{name} up to {cost_value(name, n)}" for name, n in report.target.items()
    ]
    if report.max_drop is not None:
        limits.append(f"a drop up to {report.max_drop:g}")
    return (
        f"Search for {', '.join(limits)}; judged by {report.samples} samples of data "
        f"that nothing was trained on; {report.stopped}"
    )
