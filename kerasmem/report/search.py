"""Table and chart of the trials of a search."""

from dataclasses import dataclass
from typing import Any

import rich.table

from kerasmem.compression.search.target import cost_value
from kerasmem.records import SearchReport
from kerasmem.records.table import Table, terminal_table
from kerasmem.report.page.panels import Packer


def trial_table(report: SearchReport) -> Table:
    """Returns all trials of a search in order, with the selected trial in bold."""
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
        "Trials",
        ("techniques", "trained", *costs, f"drop of {report.metric}", "Pareto front"),
        tuple(rows),
        texts=2,
        last_texts=1,
        note=f"{_about(report)}. The selected trial is bold.",
        row_looks={report.chosen: "strong"},
    )


def search_table(report: SearchReport) -> rich.table.Table:
    """Returns the trials for the terminal, with the selected trial in bold."""
    return terminal_table(trial_table(report), _about(report))


def _about(report: SearchReport) -> str:
    limits = [
        f"{name} up to {cost_value(name, n)}" for name, n in report.target.items()
    ]
    if report.max_drop is not None:
        limits.append(f"a drop up to {report.max_drop:g}")
    return (
        f"Search for {', '.join(limits)}; evaluated on {report.samples} samples not "
        f"used for training; {report.stopped}"
    )


@dataclass(frozen=True)
class SearchChart:
    """Title, description for screen readers, and axis label of the chart of trials."""

    title: str
    words: str
    across: str


def search_chart(report: SearchReport) -> SearchChart:
    """Returns the texts of the chart of drop against cost."""
    trial = report.trials[report.chosen]
    of = "limit" if report.target else "unchanged file"
    bounds = of if report.max_drop is None else f"{of}, and the largest drop allowed"
    words = (
        f"{len(report.trials)} trials, {sum(t.on_front for t in report.trials)} on the "
        f"Pareto front. Selected: {trial.name}, {trial.over:.2f} of the {of}, drop "
        f"{trial.drop:+.4f}. Thin: one standard error. Dotted: the {bounds}."
    )
    return SearchChart(
        f"Drop of {report.metric} by share of the {of}", words, f"share of the {of}"
    )


def packed_trials(report: SearchReport, packer: Packer) -> dict[str, Any]:
    """Returns the trials for `points.js`."""
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
