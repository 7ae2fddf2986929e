"""Curves on the page of a compression: of a training, and how sensitive weights are."""

from collections.abc import Mapping, Sequence

from kerasmem.compression.prune.analysis import Sensitivity
from kerasmem.records.table import Table, evenly, number_text
from kerasmem.report.page.panels import Line, Panel

_STYLES = ("peak", "current", "validation", "largest", "within", "pool", "card")
"""Looks of lines; a chart has no more lines than there are."""


def history_panels(history: Mapping[str, Sequence[float]]) -> list[Panel]:
    """Return the charts of a training's losses and of its other metrics.

    Args:
        history: values by name and epoch, as of `History.history`.
    """
    losses = [name for name in history if name.endswith("loss")]
    others = [name for name in history if name not in losses]
    panels = {"Losses": losses, "Metrics": others}
    return [
        Panel(title, tuple(_lines(history, names)), unit="number")
        for title, names in panels.items()
        if names
    ]


def _lines(history: Mapping[str, Sequence[float]], names: Sequence[str]) -> list[Line]:
    points = [(name, _by_epoch(history, name)) for name in names]
    shown = [(name, found) for name, found in points if found]
    return [
        Line(name, style, [*map(float, found)], [*map(float, found.values())])
        for (name, found), style in zip(shown, _STYLES, strict=False)
    ]


def _by_epoch(history: Mapping[str, Sequence[float]], name: str) -> dict[int, float]:
    """Return values by the number of their epoch, where there may be one in N.

    With `validation_freq=2` there are half as many of validation as epochs. Where that
    leaves open which epochs they are of there is none.
    """
    values, epochs = history[name], _epochs(history)
    steps = [n for n in range(1, epochs + 1) if epochs // n == len(values)]
    if len(steps) != 1:
        return {}
    return {steps[0] * (n + 1): value for n, value in enumerate(values)}


def _epochs(history: Mapping[str, Sequence[float]]) -> int:
    return max(map(len, history.values()), default=0)


def history_table(history: Mapping[str, Sequence[float]]) -> Table:
    """Return the values of every epoch."""
    columns = {name: _by_epoch(history, name) for name in history}
    rows, note = evenly(
        [
            (f"{n:,}", *(number_text(c.get(n), 4) for c in columns.values()))
            for n in range(1, _epochs(history) + 1)
        ]
    )
    return Table("training", ("epoch", *columns), tuple(rows), 0, note)


def sensitivity_panel(sensitivity: Sensitivity) -> Panel:
    """Return the metric against the sparsity of one weight alone.

    The weights that cost most at the highest sparsity have lines.
    """
    ranked = sorted(sensitivity.weights, key=lambda w: -float(sensitivity.drops(w)[-1]))
    shown = ranked[: len(_STYLES)]
    places = [0.0, *sensitivity.sparsities]
    lines = [
        Line(
            w.weight,
            style,
            places,
            [float(sensitivity.baseline), *map(float, w.values)],
        )
        for w, style in zip(shown, _STYLES, strict=False)
    ]
    notes = ["One weight is pruned, the others are whole; nothing is trained."]
    if len(shown) < len(ranked):
        notes.append(f"Shown are the {len(shown)} most sensitive of {len(ranked)}.")
    title = f"{sensitivity.metric} by sparsity of one weight"
    return Panel(title, tuple(lines), tuple(notes), unit="number", step="sparsity")


def sensitivity_table(sensitivity: Sensitivity) -> Table:
    """Return the metric of every weight at every sparsity."""
    rows, note = evenly(
        [
            (w.weight, f"{w.size:,}", *(number_text(float(v), 4) for v in w.values))
            for w in sensitivity.weights
        ]
    )
    heads = tuple(f"{sparsity:.0%} zero" for sparsity in sensitivity.sparsities)
    return Table("sensitivity", ("weight", "entries", *heads), tuple(rows), 1, note)
