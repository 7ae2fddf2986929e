"""Tables of the changes of a compression per weight."""

from collections import defaultdict
from collections.abc import Sequence

import rich.table

from kerasmem.records.figures import WeightChange
from kerasmem.records.table import MISSING, Table, terminal_table
from kerasmem.units import format_bytes

_DONE = {"quantize": "quantized", "factorize": "factorized", "cluster": "clustered"}


def weight_table(changes: Sequence[WeightChange]) -> Table:
    """Returns the changes and skipped weights of all techniques.

    Includes signal-to-noise ratios in dB.
    """
    noise_head = _noise_head("signal to noise", changes)
    of_outputs = len(noise_head) > 1
    rows = [
        (
            change.weight,
            change.technique,
            change.detail if change.changed else f"skipped: {change.detail}",
            format_bytes(change.before_bytes),
            format_bytes(change.after_bytes),
            *_noise(change, of_outputs=of_outputs),
        )
        for change in changes
    ]
    head = ("weight", "technique", "change", "before", "after")
    return Table(
        "Every weight",
        (*head, *noise_head),
        tuple(rows),
        texts=3,
        row_looks={i: "soft" for i, c in enumerate(changes) if not c.changed},
    )


def worst_first(changes: Sequence[WeightChange]) -> list[WeightChange]:
    """Returns the weights with an error, lowest signal-to-noise ratio first.

    Uses the ratio of the layer's output if it was measured.
    """
    lossy = [change for change in changes if change.sqnr_db is not None]
    return sorted(lossy, key=_ratio)


def noise_table(changes: Sequence[WeightChange], most: int = 10) -> rich.table.Table:
    """Returns the `most` lowest signal-to-quantization-noise ratios of weights."""
    worst = worst_first(changes)
    names = dict.fromkeys(_DONE.get(change.technique, "changed") for change in worst)
    of = f"{' and '.join(names)} weights"
    if has_output_noise(worst):
        of += " and of layers' outputs"
    title = f"signal-to-noise ratio of {of}, the worst first"
    if len(worst) > most:
        title += f" ({most} of {len(worst)})"
    rows = [
        (
            change.weight,
            change.detail,
            *_noise(change, of_outputs=has_output_noise(worst)),
            format_bytes(change.before_bytes),
            format_bytes(change.after_bytes),
        )
        for change in worst[:most]
    ]
    head = ("weight", "stored as", *_noise_head("SQNR", worst), "before", "after")
    return terminal_table(Table(title, head, tuple(rows), texts=2))


def has_output_noise(changes: Sequence[WeightChange]) -> bool:
    """Returns whether the noise of layer outputs was measured."""
    return any(change.output_sqnr_db is not None for change in changes)


def _noise_head(name: str, changes: Sequence[WeightChange]) -> tuple[str, ...]:
    return (name, "of outputs") if has_output_noise(changes) else (name,)


def _noise(change: WeightChange, *, of_outputs: bool) -> tuple[str, ...]:
    ratios = (change.sqnr_db, change.output_sqnr_db)[: 1 + of_outputs]
    return tuple("" if ratio is None else f"{ratio:.1f} dB" for ratio in ratios)


def _ratio(change: WeightChange) -> float:
    if change.output_sqnr_db is not None:
        return change.output_sqnr_db
    return change.sqnr_db or 0.0


def left_alone_table(
    changes: Sequence[WeightChange], most: int = 8
) -> rich.table.Table:
    """Returns the reasons for unchanged weights, largest total size first.

    A weight changed by any technique is not counted. A weight skipped by several
    techniques counts once, with the first reason. Reasons beyond `most` share one row.
    """
    changed_weights = {change.weight for change in changes if change.changed}
    first: dict[str, WeightChange] = {}
    for change in changes:
        if change.weight not in changed_weights:
            first.setdefault(change.weight, change)
    groups: dict[str, list[WeightChange]] = defaultdict(list)
    for change in first.values():
        groups[change.detail].append(change)
    by_size = sorted(groups.items(), key=lambda group: -_bytes_of(group[1]))
    rest = [change for _, group in by_size[most:] for change in group]
    if rest:
        by_size = [*by_size[:most], (f"{len(by_size) - most} other reasons", rest)]
    rows = tuple((reason, *_count_and_size(group)) for reason, group in by_size)
    head = ("reason for no change", "weights", "bytes")
    return terminal_table(Table("", head, rows))


def _count_and_size(group: Sequence[WeightChange]) -> tuple[str, str]:
    with_bytes = sum(change.before_bytes > 0 for change in group)
    bare = len(group) - with_bytes
    layers = f"{bare:,} layer{'s' * (bare > 1)} without weights" if bare else ""
    count = ", ".join(filter(None, [f"{with_bytes:,}" * (with_bytes > 0), layers]))
    size = _bytes_of(group)
    return count, format_bytes(size) if with_bytes else MISSING


def _bytes_of(group: Sequence[WeightChange]) -> int:
    return sum(change.after_bytes for change in group)
