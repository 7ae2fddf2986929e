"""Figures of a model: size, speed, metrics, and the changes of a compression."""

from dataclasses import dataclass, field

from kerasmem.records.plain import OrNaN


@dataclass(frozen=True)
class WideType:
    """A weight or an array with a wider data type than necessary.

    Args:
        where: Description, such as `"weight dense/kernel"` or `"data x"`.
        dtype: Current data type.
        enough: Sufficient data type.
        saved_bytes: Bytes saved by the change.
        reason: Reason, with instructions for the change.
    """

    where: str
    dtype: str
    enough: str
    saved_bytes: int
    reason: str


_CODES = 255


@dataclass(frozen=True)
class ActivationRange:
    """Range of one activation tensor, collected in a calibration.

    Args:
        tensor: Name of the tensor, such as `"encoder/conv"`. A suffix `:1` marks a
            further call of the layer, `.1` a further output.
        low: Lower end of the quantization range, at most 0.
        high: Upper end of the quantization range, at least 0 and above `low`.
        least: Smallest observed value.
        most: Largest observed value.
        values: Number of observed values.
    """

    tensor: str
    low: float
    high: float
    least: float
    most: float
    values: int

    @property
    def scale(self) -> float:
        """Step size of the quantized range."""
        return (self.high - self.low) / _CODES

    @property
    def zero_point(self) -> int:
        """Quantized value of 0, in [-128, 127]. Zero is represented exactly."""
        return max(-128, min(127, round(-128 - self.low / self.scale)))

    @property
    def is_constant(self) -> bool:
        """Whether all observed values are equal."""
        return self.least == self.most


@dataclass(frozen=True)
class WeightChange:
    """Status of one weight after one technique: changed, or skipped with a reason.

    Args:
        layer: Name of the layer that owns the weight.
        weight: Path of the weight in the model.
        technique: Name of the technique, such as `"prune"` or `"quantize"`.
        changed: Whether the technique changed the weight.
        detail: Description of the change, or the reason for skipping the weight.
        before_bytes: Bytes of the weight in RAM before the technique.
        after_bytes: Bytes of the weight in RAM after the technique.
        sqnr_db: Signal-to-quantization-noise ratio of the weight in dB. `None` if
            nothing was rounded or the error is zero.
        output_sqnr_db: Signal-to-quantization-noise ratio of the layer's output on
            samples in dB. `None` without samples.
    """

    layer: str
    weight: str
    technique: str
    changed: bool
    detail: str
    before_bytes: int
    after_bytes: int
    sqnr_db: OrNaN | None = None
    output_sqnr_db: OrNaN | None = None


SURE = 2.5
"""Safety margin of a drop in standard errors. A normal variable exceeds this margin in
one of 160 cases; a search takes the best of some dozen trials."""


@dataclass(frozen=True)
class SearchTrial:
    """One compression tried in a search.

    Args:
        name: Description of the techniques, or `"unchanged"`.
        steps: JSON configs of the techniques, in order.
        epochs: Number of fine-tuning epochs after each technique that supports
            fine-tuning.
        costs: Value of each limited quantity by name. File size without a target.
        over: Largest ratio of a cost to its limit; at most 1 if the target is met.
            Without a target, the file size divided by the size of the unchanged model's
            file.
        drop: Drop of the first metric on the search samples.
        drop_error: Standard error of `drop`, for the numbers of samples in the search
            and in the final evaluation.
        seconds: Duration of the trial.
        on_front: Whether the trial is on the Pareto front of cost and drop.
    """

    name: str
    steps: tuple[dict[str, object], ...]
    epochs: int
    costs: dict[str, float]
    over: float
    drop: float
    drop_error: float
    seconds: float = 0.0
    on_front: bool = False

    @property
    def worst_drop(self) -> float:
        """Upper bound of the drop on other samples. Infinite if unknown."""
        worst = self.drop + SURE * self.drop_error
        return worst if worst == worst else float("inf")


@dataclass(frozen=True)
class SearchReport:
    """All trials and the result of a search.

    Args:
        target: Limits by name. Empty to minimize the file size within `max_drop`.
        max_drop: Maximum allowed drop, or `None` for no limit.
        metric: Name of the metric behind the drop.
        samples: Number of samples used to evaluate trials. They are not used for
            training or for the final evaluation.
        trials: All evaluated trials, in order. The first is the unchanged model.
        chosen: Index of the selected trial.
        left_out: Reasons by technique for techniques that were not tried.
        stopped: Reason for the end of the search.
    """

    target: dict[str, float]
    max_drop: float | None
    metric: str
    samples: int
    trials: tuple[SearchTrial, ...]
    chosen: int
    left_out: dict[str, str]
    stopped: str

    @property
    def is_met(self) -> bool:
        """Whether the selected trial meets the target and `max_drop`."""
        trial = self.trials[self.chosen]
        is_within = trial.over <= 1 or not self.target
        return is_within and (
            self.max_drop is None or trial.worst_drop <= self.max_drop
        )


@dataclass(frozen=True)
class ModelFigures:
    """Size, speed and metrics of one model. `None` marks a missing figure.

    Args:
        file_bytes: Size of the input or output file. For a model in memory, the size of
            a `.keras` file without optimizer state.
        weight_bytes: Bytes of all weights in RAM.
        parameters: Number of weight entries.
        nonzero: Number of nonzero weight entries.
        activation_peak_bytes: Estimated peak of live layer outputs in a forward pass of
            one sample.
        latency_ms: Measured median time of a forward pass of one batch.
        latency_batch_size: Number of samples in this batch.
        metrics: Measured loss and metrics on the validation data, by name.
        latency_low_ms: 10th percentile of the latency.
        latency_high_ms: 90th percentile of the latency.
        tokens_per_second: Tokens of the batch per second of median latency, for
            language models.
        tokens: Number of tokens behind the metrics, for language models.
        token_bytes: Bytes of weights read per token, for language models.
        first_token_ms: Median time from the prompt to the first generated token.
        generated_per_second: Generated tokens per second, prompt included.
        optimizer_file_bytes: Bytes of optimizer state in `file_bytes`, or 0 below 1
            KiB.
    """

    file_bytes: int | None = None
    weight_bytes: int | None = None
    parameters: int | None = None
    nonzero: int | None = None
    activation_peak_bytes: int | None = None
    latency_ms: float | None = None
    latency_batch_size: int | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    tokens_per_second: float | None = None
    tokens: int | None = None
    token_bytes: int | None = None
    first_token_ms: float | None = None
    generated_per_second: float | None = None
    optimizer_file_bytes: int = 0

    @property
    def model_file_bytes(self) -> int | None:
        """Size of the file without optimizer state."""
        if self.file_bytes is None:
            return None
        return self.file_bytes - self.optimizer_file_bytes

    def is_clearly_faster(self, other: "ModelFigures") -> bool | None:
        """Returns whether the median latency is below the other's 10th percentile."""
        if self.latency_ms is None or other.latency_low_ms is None:
            return None
        return self.latency_ms < other.latency_low_ms
