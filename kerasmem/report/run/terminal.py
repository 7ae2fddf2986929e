"""The headline and the findings of a run, for the terminal."""

from collections.abc import Sequence

from rich.table import Table

from kerasmem.records import Finding
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


def finding_table(findings: Sequence[Finding]) -> Table:
    """Return what the monitors noticed."""
    table = Table(title="Findings", title_justify="left", show_header=False)
    table.add_column("kind")
    table.add_column("text", overflow="fold")
    for finding in findings:
        table.add_row(finding.kind, f"{finding.text} (epoch {finding.epoch + 1})")
    return table
