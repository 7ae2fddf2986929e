"""Records of the cost of training options and input pipelines."""

from dataclasses import dataclass

from kerasmem.records.estimate import size_rows
from kerasmem.records.plain import JsonRecord
from kerasmem.units import format_bytes


@dataclass(frozen=True)
class PipelineStage:
    """One stage of an input pipeline.

    Args:
        name: Description, such as `"shuffle buffer"`.
        nbytes: Estimated maximum bytes, or `None` if unknown or unbounded.
        advice: Setting that reduces the memory, or `None`.
    """

    name: str
    nbytes: int | None
    advice: str | None = None


@dataclass(frozen=True)
class DataMemory(JsonRecord):
    """Result of `inspect_data`.

    Args:
        stages: Stages of the pipeline, from the source on.
        batch_size: Number of samples per batch.
        batch_bytes: Bytes of the first batch, or `None` if the data can be read only
            once.
        measured_bytes: Peak increase of resident memory while the first batches were
            read. `None` if no batch was read.
        measured_batches: Number of batches read for the measurement.
    """

    stages: tuple[PipelineStage, ...]
    batch_size: int
    batch_bytes: int | None
    measured_bytes: int | None
    measured_batches: int

    @property
    def estimated_bytes(self) -> int:
        """Sum over all stages with a known size."""
        return sum(stage.nbytes or 0 for stage in self.stages)

    def table(self) -> str:
        """Returns the figures and the advice as text."""
        sizes = [(stage.name, stage.nbytes) for stage in self.stages]
        sizes.append(("total of the known sizes", self.estimated_bytes))
        if self.batch_bytes is not None:
            sizes.append(("one batch", self.batch_bytes))
        lines = ["host memory of the data, estimated:", *size_rows(sizes)]
        if self.measured_bytes is not None:
            came = format_bytes(self.measured_bytes)
            lines.append(
                f"measured increase of resident memory over {self.measured_batches} "
                f"batches: {came}"
            )
        advice = [f"  {s.name}: {s.advice}" for s in self.stages if s.advice]
        return "\n".join([*lines, "advice:", *advice] if advice else lines)


MEASURED = "measured"


@dataclass(frozen=True, kw_only=True)
class VariantFigures:
    """Cost of one training variant, measured in a separate process.

    If the run failed, all figures are missing and `reason` is set.

    Args:
        name: The changed option, such as `"jit on"`, or `"as compiled"`.
        batch_size: Number of samples per forward pass.
        how: Code that sets the option, or `""` for `"as compiled"`.
        steps_per_update: Number of batches whose gradients are accumulated for one
            update. The figures below refer to one update with all its samples.
        peak_bytes: Largest peak of a step after the first. `None` if unknown, as with
            torch's compiler on a CPU.
        peak_low_bytes: Smallest peak of a step after the first.
        peak_source: `"measured"` by the framework's allocator, or the method of the
            estimate, such as `"traced"`.
        first_step_ms: Time of the first step, including tracing and compilation.
        step_ms: Median time of a later step.
        step_low_ms: 10th percentile of the time of a later step.
        step_high_ms: 90th percentile of the time of a later step.
        steps: Number of later steps.
        samples_per_second: Samples of a step divided by the median time.
        on_front: Whether the run is on the Pareto front of memory and time, among the
            runs with the same `peak_source`.
        reason: Reason for a failure, or `""`.
    """

    name: str
    batch_size: int
    how: str = ""
    steps_per_update: int = 1
    peak_bytes: int | None = None
    peak_low_bytes: int | None = None
    peak_source: str | None = None
    first_step_ms: float | None = None
    step_ms: float | None = None
    step_low_ms: float | None = None
    step_high_ms: float | None = None
    steps: int = 0
    samples_per_second: float | None = None
    on_front: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Tuning(JsonRecord):
    """Cost of a training step for each option.

    Args:
        batch_size: Number of samples per update.
        backend: `"tensorflow"`, `"jax"` or `"torch"`.
        device: `"gpu"` or `"cpu"`.
        jit_compile: Whether the model was compiled with `jit_compile`.
        dtype_policy: Data type policy of the model.
        variants: Figures per run. The first run is `"as compiled"`.
        noise: Relative time difference of two runs as compiled, such as 0.05 for 5 %.
            `None` without a second run.
        recommendation: Recommendation in words.
    """

    batch_size: int
    backend: str
    device: str
    jit_compile: bool
    dtype_policy: str
    variants: tuple[VariantFigures, ...]
    noise: float | None
    recommendation: str
