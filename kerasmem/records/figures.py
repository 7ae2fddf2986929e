"""The figures of a model, and the comparison of two."""

from dataclasses import dataclass, field

from kerasmem.records.plain import OrNaN


@dataclass(frozen=True)
class WideType:
    """One weight or array in a type wider than it needs.

    Args:
        where: what it is, such as `"weight dense/kernel"` or `"data x"`.
        dtype: its type.
        enough: the type that would do.
        saved_bytes: bytes that changing it saves.
        reason: why that type would do, and how to change it.
    """

    where: str
    dtype: str
    enough: str
    saved_bytes: int
    reason: str


_CODES = 255


@dataclass(frozen=True)
class ActivationRange:
    """What one tensor of a forward pass takes, as a calibration saw it.

    Args:
        tensor: the call that gives it, such as `"encoder/conv"`, with `:1` and so on
            for further calls of one layer, and `.1` and so on for further outputs.
        low: lower end of the range that codes are for, at most 0.
        high: upper end, at least 0 and above `low`.
        least: the smallest value seen.
        most: the largest value seen.
        values: number of values seen.
    """

    tensor: str
    low: float
    high: float
    least: float
    most: float
    values: int

    @property
    def scale(self) -> float:
        """What one step of the codes stands for."""
        return (self.high - self.low) / _CODES

    @property
    def zero_point(self) -> int:
        """The code of 0, in [-128, 127]: zero is one of the numbers that codes have."""
        return max(-128, min(127, round(-128 - self.low / self.scale)))

    @property
    def is_constant(self) -> bool:
        """Whether every value seen was the same."""
        return self.least == self.most


@dataclass(frozen=True)
class WeightChange:
    """One weight after one technique: changed, or left alone and why.

    Args:
        layer: name of the layer that owns the weight.
        weight: path of the weight within the model.
        technique: `"prune"`, `"quantize"`.
        changed: True if the technique changed this weight.
        detail: what was done, or why nothing was.
        before_bytes: bytes of the weight in RAM before.
        after_bytes: bytes of the weight in RAM after.
        sqnr_db: signal-to-quantization-noise ratio of the weight in dB; None if nothing
            was rounded, or nothing was lost.
        output_sqnr_db: the same of what the layer makes of samples; None without any.
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
"""Standard errors by which a drop may be worse than it looks. A normal variable is
further off in one of 160 cases; a search takes the best of some dozen."""


@dataclass(frozen=True)
class SearchTrial:
    """One compression that was tried.

    Args:
        name: which techniques, in words; `"unchanged"` for none.
        steps: the techniques, in order, as their JSON configs.
        epochs: of fine-tuning after each technique that allows it.
        costs: what the target limits, by name; the file without a target.
        over: the largest of the costs as a share of its limit, at most 1 if all are
            met; without a target, the file as a share of the unchanged model's.
        drop: by how much the first metric got worse on samples kept for the search.
        drop_error: standard error of that, for samples as many as those and as many as
            the final judgement has.
        seconds: what the trial took.
        on_front: no other trial costs less and drops no more, or the other way round.
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
        """The drop that is hardly exceeded on other samples; infinite if unknown."""
        worst = self.drop + SURE * self.drop_error
        return worst if worst == worst else float("inf")


@dataclass(frozen=True)
class SearchReport:
    """A search, from its first trial to its last.

    Args:
        target: the limits by name, empty for as small a file as `max_drop` allows.
        max_drop: the largest drop allowed; None for any.
        metric: name of the metric that the drop is of.
        samples: number of samples that judged the trials; nothing was trained on them,
            and none of them judges the result.
        trials: all that were judged, in order; the first is the model unchanged.
        chosen: which of them was taken.
        left_out: techniques that were not tried, with the reason.
        stopped: why no more were tried.
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
        """Whether what was taken is within the target and within `max_drop`."""
        trial = self.trials[self.chosen]
        is_within = trial.over <= 1 or not self.target
        return is_within and (
            self.max_drop is None or trial.worst_drop <= self.max_drop
        )


@dataclass(frozen=True)
class ModelFigures:
    """What one model costs and how well it does. None means: not measured.

    Args:
        file_bytes: size of the input file, or of the written file. For a model in
            memory, the size of the file that Keras writes without optimizer state.
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
        tokens_per_second: tokens of that batch in the median time, of language models.
        token_bytes: bytes of weights that are read for one token, of language models.
        optimizer_file_bytes: bytes of `file_bytes` that are optimizer state, 0 if they
            are less than 1 KiB.
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
    token_bytes: int | None = None
    optimizer_file_bytes: int = 0

    @property
    def model_file_bytes(self) -> int | None:
        """Size of the file without optimizer state."""
        if self.file_bytes is None:
            return None
        return self.file_bytes - self.optimizer_file_bytes

    def is_clearly_faster(self, other: "ModelFigures") -> bool | None:
        """Return whether nine in ten passes of another took longer; None if unknown."""
        if self.latency_ms is None or other.latency_low_ms is None:
            return None
        return self.latency_ms < other.latency_low_ms
