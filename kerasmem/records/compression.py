"""The figures of a model before and after compression."""

from dataclasses import dataclass

from kerasmem.records.figures import ModelFigures, SearchReport


@dataclass(frozen=True)
class CompressionReport:
    """A model before and after compression.

    Args:
        before: figures of the model that was handed in.
        after: figures of the result.
        steps: the techniques, in order, as their JSON configs.
        samples: number of validation samples behind the metrics, 0 for none.
        search: how the steps were found; None if they were given.
        warning: what is far worse than before; None if nothing is.
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
        """Returns the figures of both models side by side, as text."""
        from kerasmem.records.comparison import comparison_table
        from kerasmem.records.table import as_text

        first = f"{self.warning}\n" if self.warning else ""
        return first + as_text(comparison_table(self.by_name()))

    def by_name(self) -> dict[str, ModelFigures]:
        """Return the figures of both models under the names that tables show."""
        return {"before": self.before, "after": self.after}

    @property
    def file_ratio(self) -> float | None:
        """How many times smaller the file became, without optimizer state."""
        return _ratio(self.before.model_file_bytes, self.after.model_file_bytes)

    @property
    def weight_ratio(self) -> float | None:
        """How many times less RAM the weights take."""
        return _ratio(self.before.weight_bytes, self.after.weight_bytes)


def _ratio(before: int | None, after: int | None) -> float | None:
    return before / after if before and after else None
