"""Contents of files, exports, and what a model costs in each runtime."""

from dataclasses import dataclass

from kerasmem.records.plain import JsonRecord
from kerasmem.units import format_bytes


@dataclass(frozen=True)
class OperationPrecision:
    """An operation of a file with another precision than the file's scheme.

    Args:
        operation: the name of its output in the file.
        kind: its name in the runtime, such as `"FULLY_CONNECTED"`.
        precision: `"int8"`; `"int16x8"`: int16 activations, int8 weights; `"dynamic
            int8"`: int8 weights, and inputs that are rounded row by row at run time;
            `"weight-only int8"`: int8 weights that become float at run time; `"float"`.
        reason: why.
    """

    operation: str
    kind: str
    precision: str
    reason: str


@dataclass(frozen=True)
class ExportReport:
    """One exported file, run back and compared with the model it was made of.

    Args:
        path: the file, LiteRT's or ONNX's by its ending.
        scheme: `"float"`, `"int8-dynamic"`, `"int8-static"` or `"int4"`.
        file_bytes: size of the file.
        samples: number of samples that it is judged on.
        measure: what is lost: `"accuracy loss"`, `"changed decisions"` (a share of the
            samples) or `"relative L2"`.
        loss: how much of it.
        tolerance: the largest loss that was allowed.
        difference: largest absolute difference of an output, as a share of the
            largest output; it is not judged.
        integer_share: share of the multiplications whose inputs are integers; 0 for
            `"float"`.
        operations: those with another precision than that of the scheme.
    """

    path: str
    scheme: str
    file_bytes: int
    samples: int
    measure: str
    loss: float
    tolerance: float
    difference: float
    integer_share: float = 0.0
    operations: tuple[OperationPrecision, ...] = ()

    def lines(self) -> list[str]:
        """Return the report as lines of text, operations with the same reason in one.

        Example:
            >>> report = ExportReport(
            ...     "m.tflite", "float", 2048, 4, "relative L2", 2e-7, 1e-5, 3e-7
            ... )
            >>> report.lines()[0]
            'm.tflite: float, 2.00 KiB'
        """
        lines = [
            f"{self.path}: {self.scheme}, {format_bytes(self.file_bytes)}",
            f"{self.measure} on {self.samples} samples: {self.loss:.3g} (at most "
            f"{self.tolerance:g}); largest difference of an output: "
            f"{self.difference:.3g} of the largest",
        ]
        if self.integer_share:
            lines.append(
                f"multiplications of integers: {100 * self.integer_share:.1f} %"
            )
        groups: dict[tuple[str, str], list[str]] = {}
        for each in self.operations:
            name = f"{each.operation} ({each.kind})"
            groups.setdefault((each.precision, each.reason), []).append(name)
        for (precision, reason), names in groups.items():
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            lines.append(f"{len(names)} in {precision}, {reason}: {some}")
        return lines


@dataclass(frozen=True)
class StoredTensor:
    """One weight in a file.

    Args:
        name: the layer as it is named, and the number of the weight in it: Keras keeps
            no more of its name.
        shape: its shape.
        dtype: type of an entry.
        weight_bytes: bytes of it in RAM.
        file_bytes: bytes of the file that it takes.
        coding: how it is written: `"stored"`, `"deflated"`, `"shuffled, deflated"`,
            `"entropy"`, or `"zeros"` that take nothing.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    weight_bytes: int
    file_bytes: int
    coding: str


@dataclass(frozen=True)
class FileContents:
    """A model's file, every byte of it counted once.

    Args:
        file_bytes: its size.
        tensors: the weights, those that take most of the file first.
        other: bytes of everything else by what they are: the members of the archive
            beside the weights, `"structure of the weights"`, `"archive"`.
    """

    file_bytes: int
    tensors: tuple[StoredTensor, ...]
    other: dict[str, int]


@dataclass(frozen=True)
class BatchTime:
    """The time that one batch takes.

    Args:
        batch_size: samples in it.
        milliseconds: median time of one forward pass.
        low_ms: nine in ten passes took longer.
        high_ms: nine in ten passes took less.
    """

    batch_size: int
    milliseconds: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True, kw_only=True)
class RuntimeFigures:
    """A model in one form, run by one runtime. None means: not to be had.

    None of the figures is there if the form could not be made; `reason` says why.

    Args:
        name: such as `"LiteRT, int8-static"`.
        how: what to write to get it.
        needs_keras: whether it runs only in a process that has Keras.
        times: of every batch size, in ascending order.
        file_bytes: size of the file without optimizer state. For the model as it is,
            the size of the input file of `kerasmem runtimes`.
        weight_bytes: of the weights, in RAM or as constants of the file.
        peak_bytes: most resident bytes during a pass of the largest batch, on the CPU
            in a process of its own, beyond those before the model was opened.
        process_bytes: most resident bytes of that process then, its runtime included.
        difference: largest absolute difference of an output from those of the model as
            it is, as a share of the largest output.
        reason: why it could not be made, `""` if it was.
    """

    name: str
    how: str
    needs_keras: bool
    times: tuple[BatchTime, ...] = ()
    file_bytes: int | None = None
    weight_bytes: int | None = None
    peak_bytes: int | None = None
    process_bytes: int | None = None
    difference: float | None = None
    reason: str = ""

    def time(self, batch_size: int) -> BatchTime | None:
        """Return the time of a batch, None if it was not measured."""
        matches = (t for t in self.times if t.batch_size == batch_size)
        return next(matches, None)


@dataclass(frozen=True)
class RuntimeAdvice:
    """Which form to use for one purpose.

    Args:
        use: the purpose, such as `"fastest, batch of 1"`.
        name: the form whose figure is least.
        others: forms that are not clearly worse.
        sentence: the advice in words, with the figure that it follows from.
    """

    use: str
    name: str
    others: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class RuntimeComparison(JsonRecord):
    """A model as it is, with int8 weights, and as LiteRT files, side by side.

    Args:
        model: its name.
        backend: `"tensorflow"`, `"jax"` or `"torch"`.
        device: `"gpu"` or `"cpu"`, what Keras runs on; LiteRT runs on the CPU.
        threads: of LiteRT; Keras takes all that it finds.
        samples: number of samples whose outputs were compared, those of one batch.
        with_data: whether they came from the caller; else they are random.
        runtimes: the forms; the first is the model as it is.
        advice: which to use for what.
    """

    model: str
    backend: str
    device: str
    threads: int
    samples: int
    with_data: bool
    runtimes: tuple[RuntimeFigures, ...]
    advice: tuple[RuntimeAdvice, ...]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes that were measured."""
        return tuple(time.batch_size for time in self.runtimes[0].times)
