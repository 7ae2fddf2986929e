"""The figures of a model before and after compression."""

from dataclasses import dataclass

from kerasmem.records.figures import ModelFigures, SearchReport


@dataclass(frozen=True)
class CompressionReport:
    """Figures of a model before and after compression.

    Args:
        before: Figures of the input model.
        after: Figures of the result.
        steps: JSON configs of the techniques, in order.
        samples: Number of validation samples behind the metrics, or 0.
        search: Report of the search, or `None` if the steps were specified.
        warning: Description of a severe degradation, or `None`.
    """

    before: ModelFigures
    after: ModelFigures
    steps: tuple[dict[str, object], ...] = ()
    samples: int = 0
    search: SearchReport | None = None
    warning: str | None = None

    def __repr__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Returns the figures of both models as a text table."""
        from kerasmem.records.comparison import comparison_table
        from kerasmem.records.table import as_text

        first = f"{self.warning}\n" if self.warning else ""
        return first + as_text(comparison_table(self.by_name()))

    def by_name(self) -> dict[str, ModelFigures]:
        """Returns the figures of both models by the names used in tables."""
        return {"before": self.before, "after": self.after}

    @property
    def file_ratio(self) -> float | None:
        """Ratio of file sizes before and after, without optimizer state."""
        return _ratio(self.before.model_file_bytes, self.after.model_file_bytes)

    @property
    def weight_ratio(self) -> float | None:
        """Ratio of weight bytes in RAM before and after."""
        return _ratio(self.before.weight_bytes, self.after.weight_bytes)


def _ratio(before: int | None, after: int | None) -> float | None:
    return before / after if before and after else None
