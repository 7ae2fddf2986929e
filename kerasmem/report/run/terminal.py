"""The headline, the post-mortems and the findings of a run, for the terminal."""

from collections.abc import Sequence

from rich.table import Table

from kerasmem.records import Finding, PostMortem, Remedy
from kerasmem.records.post_mortem import (
    cause_sentence,
    fitting_sentence,
    moment_words,
    remedy_words,
)
from kerasmem.report.run.headline import Figure


def headline_table(figures: Sequence[Figure], title: str) -> Table:
    """Return the figures that a reader wants first."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("detail")
    for figure in figures:
        table.add_row(figure.label, figure.value, figure.detail)
    return table


def finding_table(findings: Sequence[Finding], most: int = 5) -> Table:
    """Return what the monitors noticed.

    Args:
        findings: those of a run, the gravest first.
        most: number of them to list, the first ones.
    """
    table = Table(title="Findings", title_justify="left", show_header=False)
    for name in ("severity", "kind"):
        table.add_column(name)
    table.add_column("text", overflow="fold")
    for one in findings[:most]:
        text = f"{one.text} (epoch {one.epoch + 1})"
        table.add_row(one.severity, one.kind, text)
    if len(findings) > most:
        more = f"{len(findings) - most:,} more are on the page"
        table.add_row("", "", more)
    return table


def post_mortem_table(found: Sequence[PostMortem], most: int = 5) -> Table:
    """Return why memory ran out, and what would help.

    Args:
        found: the post-mortems of a run.
        most: number of them to list, the first ones.
    """
    table = Table(title="Out of memory", title_justify="left", show_lines=True)
    for name in ("when", "why", "what would help"):
        table.add_column(name, overflow="fold")
    for one in found[:most]:
        help_ = [fitting_sentence(one), *(_gain(remedy) for remedy in one.remedies)]
        table.add_row(
            moment_words(one), cause_sentence(one.cause), "\n".join(filter(None, help_))
        )
    if len(found) > most:
        table.add_row(f"{len(found) - most:,} more", "", "they are on the page")
    return table


def _gain(remedy: Remedy) -> str:
    return ", ".join(filter(None, (remedy.name, remedy_words(remedy))))
