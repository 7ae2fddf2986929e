"""What a search has tried: as a table, and as rows that a page can show."""

from dataclasses import dataclass

from rich.table import Table

from kerasmem.compression.search.target import cost_value
from kerasmem.records import SearchReport


@dataclass(frozen=True)
class TrialRow:
    """One trial in words.

    Args:
        name: its techniques.
        training: whether it was fine-tuned.
        costs: each cost, in the order of `cost_names`.
        drop: of the metric, with its standard error.
        front: `"yes"` if it is on the Pareto front.
        is_chosen: whether it was taken.
    """

    name: str
    training: str
    costs: tuple[str, ...]
    drop: str
    front: str
    is_chosen: bool


def cost_names(report: SearchReport) -> list[str]:
    """Return the names of the costs that the trials tell."""
    return list(report.trials[0].costs)


def trial_rows(report: SearchReport) -> list[TrialRow]:
    """Return the trials in words, in order."""
    return [
        TrialRow(
            name=trial.name,
            training=f"{trial.epochs} epochs" if trial.epochs else "",
            costs=tuple(cost_value(name, value) for name, value in trial.costs.items()),
            drop=f"{trial.drop:+.4f} ± {trial.drop_error:.4f}",
            front="yes" if trial.on_front else "",
            is_chosen=number == report.chosen,
        )
        for number, trial in enumerate(report.trials)
    ]


def search_table(report: SearchReport) -> Table:
    """Return the trials as a table for the terminal; the one taken is bold."""
    table = Table(title=search_title(report), title_justify="left")
    table.add_column("tried", overflow="fold")
    table.add_column("trained")
    for name in cost_names(report):
        table.add_column(name, justify="right")
    table.add_column(f"drop of {report.metric}", justify="right")
    table.add_column("Pareto front")
    for row in trial_rows(report):
        style = "bold" if row.is_chosen else None
        cells = (row.name, row.training, *row.costs, row.drop, row.front)
        table.add_row(*cells, style=style)
    return table


def search_title(report: SearchReport) -> str:
    """Return what was searched for, and what the trials were judged by."""
    limits = [
        f"{name} up to {cost_value(name, n)}" for name, n in report.target.items()
    ]
    if report.max_drop is not None:
        limits.append(f"a drop up to {report.max_drop:g}")
    return (
        f"search for {', '.join(limits)}; judged by {report.samples} samples of data "
        f"that nothing was trained on; {report.stopped}"
    )
