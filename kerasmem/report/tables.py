"""Tables for the terminal."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.table import Table

from kerasmem.graph.activations import LayerActivations
from kerasmem.records import FileContents, ModelFigures, WeightChange
from kerasmem.report.comparison import models_table
from kerasmem.report.page.table import MISSING
from kerasmem.report.page.table import Table as PageTable
from kerasmem.units import format_bytes

_STYLES = {"strong": "bold", "soft": "dim"}


def comparison_table(models: Mapping[str, ModelFigures], title: str = "") -> Table:
    """Return the figures of models side by side, each against the first.

    Args:
        models: figures by the model's name, the one to compare with first.
        title: what stands above the table.
    """
    return terminal_table(models_table(models), title)


def terminal_table(rows: PageTable, title: str) -> Table:
    """Return a table of a page for the terminal."""
    table = Table(title=title or None, title_justify="left")
    for column, name in enumerate(rows.columns):
        is_text = rows.look(column) == "text"
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    for number, cells in enumerate(rows.rows):
        table.add_row(*cells, style=_STYLES.get(rows.row_looks.get(number, "")))
    return table


def layer_table(layers: Sequence[LayerActivations], title: str = "") -> Table:
    """Return where a model's bytes are, one line per layer and one for the sum.

    Shares are of all weights and of all outputs. Where the size of an output is
    unknown, the sum is what there is at least, and no output has a share.
    """
    table = Table(title=title or None, title_justify="left")
    for name in ("layer", "class"):
        table.add_column(name, overflow="fold")
    for name in ("output shape", "output (est.)", "share", "parameters"):
        table.add_column(name, justify="right")
    for name in ("weights in RAM", "share"):
        table.add_column(name, justify="right")
    weights = sum(layer.weight_bytes for layer in layers)
    known = [size for layer in layers if (size := layer.output_bytes) is not None]
    is_complete = len(known) == len(layers)
    for layer in layers:
        size = layer.output_bytes
        table.add_row(
            layer.name,
            layer.class_name,
            _shape(layer.output_shape),
            MISSING if size is None else format_bytes(size),
            _share(size, sum(known)) if is_complete and size is not None else MISSING,
            f"{layer.parameters:,}",
            format_bytes(layer.weight_bytes),
            _share(layer.weight_bytes, weights),
        )
    table.add_section()
    table.add_row(
        "all",
        f"{len(layers)} layers",
        "",
        _sum_text(known, is_complete=is_complete),
        "",
        f"{sum(layer.parameters for layer in layers):,}",
        format_bytes(weights),
        "",
        style="bold",
    )
    return table


def _sum_text(known: Sequence[int], *, is_complete: bool) -> str:
    if not known:
        return MISSING
    return f"{'' if is_complete else 'at least '}{format_bytes(sum(known))}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else MISSING


def contents_table(contents: FileContents, most: int = 12) -> Table:
    """Return what takes the bytes of a file, the largest weights one by one.

    Args:
        contents: what the file is made of.
        most: number of weights with a line of their own.
    """
    table = Table(title="in the file", title_justify="left")
    table.add_column("weight", overflow="fold")
    for name in ("shape", "type"):
        table.add_column(name)
    for name in ("in RAM", "in the file", "share"):
        table.add_column(name, justify="right")
    table.add_column("written")

    def add(name: str, file_bytes: int, *cells: str, how: str = "") -> None:
        shape, dtype, weight_bytes = cells or ("", "", "")
        size, share = format_bytes(file_bytes), _share(file_bytes, contents.file_bytes)
        table.add_row(name, shape, dtype, weight_bytes, size, share, how)

    for each in contents.tensors[:most]:
        cells = (_shape(each.shape), each.dtype, format_bytes(each.weight_bytes))
        add(each.name, each.file_bytes, *cells, how=each.coding)
    rest = contents.tensors[most:]
    if rest:
        add(f"{len(rest)} smaller ones", sum(each.file_bytes for each in rest))
    table.add_section()
    for name, file_bytes in contents.other.items():
        add(name, file_bytes)
    return table


def changes_table(changes: Sequence[WeightChange], title: str = "") -> Table:
    """Return what each technique did to each weight, and what it skipped and why."""
    table = Table(title=title or None, title_justify="left")
    for name in ("weight", "technique", "what was done"):
        table.add_column(name, overflow="fold")
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    for change in changes:
        table.add_row(
            change.weight,
            change.technique,
            change.detail if change.changed else f"skipped: {change.detail}",
            format_bytes(change.before_bytes),
            format_bytes(change.after_bytes),
            style=None if change.changed else "dim",
        )
    return table


def left_alone_table(changes: Sequence[WeightChange], most: int = 8) -> Table:
    """Return why weights were left alone, one line per reason, the commonest first.

    A weight that any technique changed is not counted. One that several left alone
    counts once, by the reason of the first. Layers without weights that a technique
    leaves as they are have no bytes.

    Args:
        changes: what each technique did to each weight.
        most: number of reasons with a line of their own.
    """
    changed = {change.weight for change in changes if change.changed}
    first: dict[str, WeightChange] = {}
    for change in changes:
        if change.weight not in changed:
            first.setdefault(change.weight, change)
    groups: dict[str, list[WeightChange]] = defaultdict(list)
    for change in first.values():
        groups[change.detail].append(change)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    rest = [change for _, group in ordered[most:] for change in group]
    if rest:
        ordered = [*ordered[:most], (f"{len(ordered) - most} other reasons", rest)]
    table = Table()
    table.add_column("left alone because", overflow="fold")
    for name in ("weights", "bytes"):
        table.add_column(name, justify="right")
    for reason, group in ordered:
        size = sum(change.after_bytes for change in group)
        owned = sum(change.before_bytes > 0 for change in group)
        bare = len(group) - owned
        layers = f"{bare:,} layer{'s' * (bare > 1)} without" if bare else ""
        count = ", ".join(filter(None, [f"{owned:,}" * (owned > 0), layers]))
        table.add_row(reason, count, format_bytes(size) if owned else MISSING)
    return table


def _shape(shape: tuple[int | None, ...] | None) -> str:
    if shape is None:
        return MISSING
    return " x ".join("?" if size is None else str(size) for size in shape)
