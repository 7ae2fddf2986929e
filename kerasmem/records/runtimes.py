"""Records of file contents, exports and runtime comparisons."""

import math
from dataclasses import dataclass

from kerasmem.records.plain import JsonRecord
from kerasmem.units import format_bytes


@dataclass(frozen=True)
class OperationPrecision:
    """An operation in an exported file whose precision differs from the scheme.

    Args:
        operation: Name of the operation's output in the file.
        kind: Operation type in the runtime, such as `"FULLY_CONNECTED"`.
        precision: `"int8"`; `"int16x8"` (int16 activations, int8 weights); `"dynamic
            int8"` (int8 weights, inputs quantized row by row at run time);
            `"weight-only int8"` (int8 weights dequantized at run time); or `"float"`.
        reason: Reason for the precision.
    """

    operation: str
    kind: str
    precision: str
    reason: str


@dataclass(frozen=True)
class ExportReport:
    """One exported file, executed and compared with the original model.

    Args:
        path: Path of the LiteRT or ONNX file.
        scheme: `"float"`, `"int8-dynamic"`, `"int8-static"` or `"int4"`.
        file_bytes: Size of the file.
        samples: Number of samples in the comparison.
        measure: `"accuracy loss"`, `"changed decisions"` (fraction of the samples) or
            `"relative L2"`.
        loss: Value of `measure`.
        tolerance: Largest allowed value of `measure`.
        difference: Largest absolute difference of an output divided by the largest
            output. For information only.
        integer_share: Fraction of multiplications with integer inputs, in loops once
            per step. 0 for `"float"`.
        operations: Operations whose precision differs from the scheme.
        has_random_samples: Whether the samples were random, because none were passed.
        own_loss: Loss of the model itself if it rounds its activations as the file
            does. Added to `tolerance`.
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
    has_random_samples: bool = False
    own_loss: float = 0.0

    def lines(self) -> list[str]:
        """Returns the report as lines of text.

        Operations with the same reason share a line.

        Example:
            >>> report = ExportReport(
            ...     "m.tflite", "float", 2048, 4, "relative L2", 2e-7, 1e-5, 3e-7
            ... )
            >>> report.lines()[0]
            'm.tflite: float, 2.00 KiB'
        """
        labels = "; labels in validation_data give the accuracy"
        hint = labels if self.measure == "changed decisions" else ""
        count = f"{self.samples} {'random ' * self.has_random_samples}samples"
        limit = limit_text(self.tolerance, self.own_loss)
        lines = [
            f"{self.path}: {self.scheme}, {format_bytes(self.file_bytes)}",
            f"{self.measure} on {count}: {self.loss:.3g} (at most {limit}{hint}); "
            "largest difference of an output: "
            f"{self.difference:.3g} of the largest",
        ]
        if self.scheme != "float":
            # Rounded down, so that 100 % means all.
            percent = math.floor(1000 * self.integer_share) / 10
            lines.append(f"multiplications of integers: {percent:.1f} %")
        groups: dict[tuple[str, str], list[str]] = {}
        for each in self.operations:
            name = f"{each.operation} ({each.kind})"
            groups.setdefault((each.precision, each.reason), []).append(name)
        for (precision, reason), names in groups.items():
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            count = f"{len(names)} operation{'s' * (len(names) > 1)}"
            lines.append(f"{count} in {precision}, {reason}: {some}")
        return lines


def limit_text(tolerance: float, own_loss: float) -> str:
    """Returns the maximum loss of a file as text.

    Example:
        >>> limit_text(0.02, 0.0625)
        "0.02, plus 0.0625 of the model's own rounding"
    """
    own = f", plus {own_loss:.3g} of the model's own rounding" if own_loss else ""
    return f"{tolerance:g}{own}"


@dataclass(frozen=True)
class StoredTensor:
    """One weight in a model file.

    Args:
        name: Name of the layer and index of the weight. Keras files contain no other
            name.
        shape: Shape of the weight.
        dtype: Data type of the weight.
        weight_bytes: Bytes in RAM.
        file_bytes: Bytes in the file.
        coding: `"stored"`, `"deflated"`, `"shuffled, deflated"`, `"entropy"`, or
            `"zeros"`, which takes no space.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    weight_bytes: int
    file_bytes: int
    coding: str


@dataclass(frozen=True)
class FileContents:
    """Breakdown of a model file. Every byte is counted once.

    Args:
        file_bytes: Size of the file.
        tensors: Weights, largest in the file first.
        other: Remaining bytes by source: the other archive members, `"structure of the
            weights"` and `"archive"`.
    """

    file_bytes: int
    tensors: tuple[StoredTensor, ...]
    other: dict[str, int]


@dataclass(frozen=True)
class BatchTime:
    """Time of a forward pass for one batch size.

    Args:
        batch_size: Number of samples.
        milliseconds: Median time of a forward pass.
        low_ms: 10th percentile.
        high_ms: 90th percentile.
    """

    batch_size: int
    milliseconds: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True, kw_only=True)
class RuntimeFigures:
    """Figures of a model in one form and runtime. `None` marks a missing figure.

    If the form could not be created, all figures are missing and `reason` is set.

    Args:
        name: Name of the form, such as `"LiteRT, int8-static"`.
        how: Code or command that creates the form.
        needs_keras: Whether the process needs Keras.
        times: Times for all batch sizes, in ascending order.
        file_bytes: Size of the file without optimizer state. For the unchanged model,
            the size of the input file of `kerasmem runtimes`.
        weight_bytes: Bytes of the weights in RAM or as constants in the file.
        peak_bytes: Peak resident memory during a pass of the largest batch, minus the
            resident memory before the model was loaded. Measured on the CPU in a
            separate process.
        process_bytes: Peak resident bytes of this process, including the runtime.
        difference: Largest absolute difference of an output from the unchanged model,
            divided by the largest output.
        reason: Reason for a failure, or `""`.
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
        """Returns the time for a batch size, or `None` if it was not measured."""
        matches = (t for t in self.times if t.batch_size == batch_size)
        return next(matches, None)


@dataclass(frozen=True)
class RuntimeAdvice:
    """Recommended form for one purpose.

    Args:
        use: The purpose, such as `"fastest, batch of 1"`.
        name: The form with the smallest figure.
        others: Forms that are not clearly worse.
        sentence: The recommendation with its figure.
    """

    use: str
    name: str
    others: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class RuntimeComparison(JsonRecord):
    """Comparison of the unchanged model, int8 weights and LiteRT files.

    Args:
        model: Name of the model.
        backend: `"tensorflow"`, `"jax"` or `"torch"`.
        device: `"gpu"` or `"cpu"`, for Keras. LiteRT runs on the CPU.
        threads: Number of LiteRT threads. Keras uses all cores.
        samples: Number of samples in the comparison of outputs: one batch.
        with_data: Whether the samples are user data. If `False`, they are random.
        runtimes: Figures per form. The first is the unchanged model.
        advice: Recommended forms by purpose.
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
        """Measured batch sizes."""
        return tuple(time.batch_size for time in self.runtimes[0].times)
