"""What training and its input pipeline cost, by option."""

from dataclasses import dataclass

from kerasmem.records.estimate import size_rows
from kerasmem.records.plain import JsonRecord
from kerasmem.units import format_bytes


@dataclass(frozen=True)
class PipelineStage:
    """One part of an input pipeline.

    Args:
        name: what it is, such as `"shuffle buffer"`.
        nbytes: most bytes that it holds, estimated; None if unknown or unbounded.
        advice: what to bound and how; None if there is nothing to gain.
    """

    name: str
    nbytes: int | None
    advice: str | None = None


@dataclass(frozen=True)
class DataMemory(JsonRecord):
    """What `inspect_data` found out.

    Args:
        stages: the parts of the pipeline, from the source on.
        batch_size: samples per batch.
        batch_bytes: bytes of the first batch; None if the data can be read only once.
        measured_bytes: most resident bytes that came on top while the first batches
            were read; None if none were.
        measured_batches: number of batches that were read for it.
    """

    stages: tuple[PipelineStage, ...]
    batch_size: int
    batch_bytes: int | None
    measured_bytes: int | None
    measured_batches: int

    @property
    def estimated_bytes(self) -> int:
        """Sum over the stages whose bytes are known."""
        return sum(stage.nbytes or 0 for stage in self.stages)

    def table(self) -> str:
        """Return the figures as text, with what to bound and how."""
        sizes = [(stage.name, stage.nbytes) for stage in self.stages]
        sizes.append(("all of these, where known", self.estimated_bytes))
        if self.batch_bytes is not None:
            sizes.append(("one batch", self.batch_bytes))
        lines = ["host memory of the data, estimated:", *size_rows(sizes)]
        if self.measured_bytes is not None:
            came = format_bytes(self.measured_bytes)
            lines.append(
                f"measured over {self.measured_batches} batches, on top of what was "
                f"there: {came}"
            )
        advice = [f"  {s.name}: {s.advice}" for s in self.stages if s.advice]
        return "\n".join([*lines, "what to bound:", *advice] if advice else lines)


MEASURED = "measured"


@dataclass(frozen=True, kw_only=True)
class VariantFigures:
    """One way to train the same batch, tried in a process of its own.

    None of the figures is there if the run failed; `reason` says why.

    Args:
        name: what is changed, such as `"jit on"`; `"as compiled"` if nothing is.
        batch_size: samples that go through the model at a time.
        how: what to write to train like this; `""` for as compiled.
        steps_per_update: such batches whose gradients make one update. What is called
            a step below is one update, with the samples of all of them.
        peak_bytes: most bytes in use in a step after the first; None if nobody knows,
            as with torch's compiler on a CPU.
        peak_low_bytes: the smallest peak of such a step; `peak_bytes` is the largest.
        peak_source: `"measured"` by the framework's allocator, or the method by which
            it was estimated, such as `"traced"`.
        first_step_ms: time of the first step, which traces and compiles.
        step_ms: median time of a later step.
        step_low_ms: nine in ten steps took longer.
        step_high_ms: nine in ten steps took less.
        steps: number of the later steps.
        samples_per_second: samples of a step by its median time.
        on_front: no other run whose peak was found in the same way needs less of memory
            or time and no more of the other.
        reason: why it did not run, `""` if it did.
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
class TracedStep:
    """A step of a short `fit` whose last batch is smaller.

    Args:
        epoch: from 0.
        batch: its number in the epoch, from 0.
        samples: in the batch.
        traces: how many times the step was traced so far, None where nobody counts.
        step_ms: time of the step.
    """

    epoch: int
    batch: int
    samples: int
    traces: int | None
    step_ms: float


@dataclass(frozen=True)
class Retrace:
    """A step after the first for which the framework traced or compiled again.

    Args:
        epoch: from 0.
        batch: its number in the epoch, from 0.
        cause: what was different, and what to do about it.
        cost_ms: how much longer it took than the same step an epoch later.
    """

    epoch: int
    batch: int
    cause: str
    cost_ms: float


@dataclass(frozen=True)
class OddSize:
    """A size with which tensor cores are less than fully used.

    Args:
        layer: path of the layer, or the name of an input; `""` for the batch.
        dimension: what the size is called, such as `"units"`.
        size: as it is.
        next_16_bit: the next size for float16 and bfloat16.
        next_tf32: the next size for TF32, in which a GPU multiplies float32; `size`
            itself if that fits.
    """

    layer: str
    dimension: str
    size: int
    next_16_bit: int
    next_tf32: int


@dataclass(frozen=True)
class Tuning(JsonRecord):
    """What a training step costs under each option.

    Args:
        batch_size: samples of an update.
        backend: `"tensorflow"`, `"jax"` or `"torch"`.
        device: `"gpu"` or `"cpu"`.
        jit_compile: whether the step as compiled is compiled with jit.
        dtype_policy: the model's own.
        variants: the runs; the first is as compiled.
        noise: how much longer the slower of two runs as compiled took, 0.05 for 5 %;
            None if it did not run twice.
        traced_steps: the steps in which retracing was counted.
        retraces: those for which the step was traced again, and why.
        not_counted: why retracing was not counted, `""` if it was.
        open_inputs: inputs with axes of open length, if the step is compiled, which it
            then is for every length anew.
        odd_sizes: sizes that miss the tensor cores.
        recommendation: what follows from the figures, in words.
    """

    batch_size: int
    backend: str
    device: str
    jit_compile: bool
    dtype_policy: str
    variants: tuple[VariantFigures, ...]
    noise: float | None
    traced_steps: tuple[TracedStep, ...]
    retraces: tuple[Retrace, ...]
    not_counted: str
    open_inputs: tuple[str, ...]
    odd_sizes: tuple[OddSize, ...]
    recommendation: str
