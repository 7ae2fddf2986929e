"""Loss per epoch: what was trained for, beside what it took."""

from collections.abc import Sequence

from kerasmem.records import GradientRecord, MemoryRecord, Run
from kerasmem.report.page.panels import Lines, Panel
from kerasmem.report.page.table import MISSING, Table, evenly
from kerasmem.report.run.epochs import continued


def loss_panel(run: Run) -> Panel | None:
    """Return the chart of the losses, None if no monitor was told any."""
    lines = Lines()
    for x, record in _epochs(run):
        lines.add("loss", "peak", x, record.loss)
        lines.add("validation", "validation", x, record.val_loss)
    filled = lines.filled()
    return Panel("Loss", filled, unit="number") if filled else None


def loss_table(run: Run) -> Table:
    """Return the losses of every epoch."""
    rows, note = evenly(
        [
            (f"{x:,}", _number(record.loss), _number(record.val_loss))
            for x, record in _epochs(run)
        ]
    )
    return Table("loss", ("epoch", "loss", "validation"), tuple(rows), 0, note)


def _epochs(run: Run) -> list[tuple[int, GradientRecord | MemoryRecord]]:
    """Return the number of every epoch, from 1, with a record that tells its loss."""
    ends = [
        record
        for record in run.memory
        if record.batch is None and record.phase == "train" and record.process == 0
    ]
    records: Sequence[GradientRecord | MemoryRecord] = run.gradients or ends
    if all(record.loss is None and record.val_loss is None for record in records):
        return []
    numbers = continued(record.epoch for record in records)
    return [(n + 1, record) for n, record in zip(numbers, records, strict=True)]


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"
