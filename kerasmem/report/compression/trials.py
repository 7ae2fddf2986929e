"""What a search has tried, as a chart of points and as a table."""

from dataclasses import dataclass
from typing import Any

from kerasmem.records import SearchReport
from kerasmem.report.page.packing import Packer
from kerasmem.report.page.table import Table
from kerasmem.report.search import cost_names, search_title, trial_rows


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


def trial_table(report: SearchReport) -> Table:
    """Return every trial of a search; the one that was taken is bold."""
    trials = trial_rows(report)
    about = search_title(report)
    costs = cost_names(report)
    return Table(
        "What was tried",
        ("techniques", "trained", *costs, f"drop of {report.metric}", "Pareto front"),
        tuple((t.name, t.training, *t.costs, t.drop, t.front) for t in trials),
        texts=2,
        last_texts=1,
        note=f"{about[0].upper()}{about[1:]}. The one that was taken is bold.",
        row_looks={i: "strong" for i, trial in enumerate(trials) if trial.is_chosen},
    )


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
    names = ("trained", *cost_names(report), "drop", "Pareto front")
    rows = [
        [
            (name, text)
            for name, text in zip(
                names, (row.training, *row.costs, row.drop, row.front), strict=True
            )
            if text
        ]
        for row in trial_rows(report)
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
