"""What a search has tried, as a chart of points."""

from dataclasses import dataclass
from typing import Any

from kerasmem.records import SearchReport
from kerasmem.report.page.packing import Packer
from kerasmem.report.search import trial_table


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
    taken = report.trials[report.chosen]
    of = "limit" if report.target else "unchanged file"
    bounds = of if report.max_drop is None else f"{of}, and the largest drop allowed"
    words = (
        f"{len(report.trials)} trials, {sum(t.on_front for t in report.trials)} on the "
        f"Pareto front. Taken: {taken.name}, {taken.over:.2f} of the {of}, drop "
        f"{taken.drop:+.4f}. Thin: a standard error up and down. Dotted: the {bounds}."
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
