"""What a search has tried, as a table and as points of drop against cost."""

from dataclasses import dataclass
from typing import Any

import rich.table

from kerasmem.compression.search.target import cost_value
from kerasmem.records import SearchReport
from kerasmem.records.table import Table, terminal_table
from kerasmem.report.page.panels import Packer


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


def search_table(report: SearchReport) -> rich.table.Table:
    """Return the trials as a table for the terminal; the one taken is bold."""
    return terminal_table(trial_table(report), _about(report))


def _about(report: SearchReport) -> str:
    limits = [
        f"{name} up to {cost_value(name, n)}" for name, n in report.target.items()
    ]
    if report.max_drop is not None:
        limits.append(f"a drop up to {report.max_drop:g}")
    return (
        f"Search for {', '.join(limits)}; judged by {report.samples} samples of data "
        f"that nothing was trained on; {report.stopped}"
    )


@dataclass(frozen=True)
class SearchChart:
    """The trials as points, in words.

    Args:
        title: what stands above the chart.
        words: what it shows, for those who cannot see it.
        across: what its horizontal axis is of.
    """

    title: str
    words: str
    across: str


def search_chart(report: SearchReport) -> SearchChart:
    """Return the words of the chart of drop against cost."""
    trial = report.trials[report.chosen]
    of = "limit" if report.target else "unchanged file"
    bounds = of if report.max_drop is None else f"{of}, and the largest drop allowed"
    words = (
        f"{len(report.trials)} trials, {sum(t.on_front for t in report.trials)} on the "
        f"Pareto front. Taken: {trial.name}, {trial.over:.2f} of the {of}, drop "
        f"{trial.drop:+.4f}. Thin: a standard error up and down. Dotted: the {bounds}."
    )
    return SearchChart(
        f"Drop of {report.metric} by share of the {of}", words, f"share of the {of}"
    )


def packed_trials(report: SearchReport, packer: Packer) -> dict[str, Any]:
    """Return what `points.js` reads."""
    trials = report.trials
    table = trial_table(report)
    rows = [
        [pair for pair in zip(table.columns[1:], row[1:], strict=True) if pair[1]]
        for row in table.rows
    ]
    return {
        "names": [trial.name for trial in trials],
        "rows": rows,
        "x": packer.place([trial.over for trial in trials]),
        "y": packer.place([trial.drop for trial in trials]),
        "error": packer.place([trial.drop_error for trial in trials]),
        "front": [i for i, trial in enumerate(trials) if trial.on_front],
        "taken": report.chosen,
        "most": packer.place([] if report.max_drop is None else [report.max_drop]),
        "across": search_chart(report).across,
        "up": f"drop of {report.metric}",
    }
