"""The figures of a model, and the comparison of two."""

from dataclasses import dataclass, field

from kerasmem.records.search import SearchReport


@dataclass(frozen=True)
class ModelFigures:
    """What one model costs and how well it does. None means: not to be had.

    Args:
        file_bytes: size of the file that was handed in, or that is written; of a model
            that came without one, of what Keras writes without optimizer state.
        weight_bytes: bytes of all weights in RAM.
        parameters: number of weight entries.
        nonzero: number of weight entries that are not zero.
        activation_peak_bytes: estimated most bytes of layer outputs alive at once
            in one forward pass of one sample.
        latency_ms: measured median time of one forward pass of one batch.
        latency_batch_size: number of samples in that batch.
        metrics: measured loss and metrics on the validation data, by name.
        latency_low_ms: nine in ten passes took longer.
        latency_high_ms: nine in ten passes took less.
    """

    file_bytes: int
    weight_bytes: int
    parameters: int
    nonzero: int
    activation_peak_bytes: int | None = None
    latency_ms: float | None = None
    latency_batch_size: int | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None

    def is_clearly_faster(self, other: "ModelFigures") -> bool | None:
        """Return whether nine in ten passes of another took longer; None if unknown."""
        if self.latency_ms is None or other.latency_low_ms is None:
            return None
        return self.latency_ms < other.latency_low_ms


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

    @property
    def file_ratio(self) -> float:
        """How many times smaller the file became."""
        return self.before.file_bytes / self.after.file_bytes

    @property
    def weight_ratio(self) -> float:
        """How many times less RAM the weights take."""
        return self.before.weight_bytes / self.after.weight_bytes
