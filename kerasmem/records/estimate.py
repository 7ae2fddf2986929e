"""Estimates of the device memory that a model needs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from kerasmem.optional import feature
from kerasmem.records.plain import JsonRecord
from kerasmem.records.timeline import CATEGORIES
from kerasmem.units import format_bytes, parse_bytes


@dataclass(frozen=True)
class CardStatus:
    """Settings and memory of one GPU.

    Args:
        card: CUDA index of the card within `CUDA_VISIBLE_DEVICES`, from 0.
        limit_bytes: Memory limit of this process on the card, or `None` if unlimited or
            unknown.
        growth: Whether memory is allocated on demand. If `False`, the pool is allocated
            at the start.
        allocator: `"bfc"`, `"cuda_malloc_async"`, or the backend's name of another
            allocator.
        used_bytes: Bytes in use by this process according to the framework's allocator,
            or 0 before the start. The pool may be larger.
        card_used_bytes: Bytes in use on the whole card. `None` without NVML.
        card_total_bytes: Memory of the card. `None` without NVML.
        others_bytes: Part of `card_used_bytes` owned by other processes and the driver.
            `None` if the driver does not report memory per process, as in a container.
    """

    card: int
    limit_bytes: int | None
    growth: bool | None
    allocator: str | None
    used_bytes: int
    card_used_bytes: int | None
    card_total_bytes: int | None
    others_bytes: int | None


@dataclass(frozen=True)
class DeviceStatus(JsonRecord):
    """Result of `kerasmem.memory.status`.

    Args:
        backend: Name of the Keras backend.
        started: Whether the framework has initialized its devices. Most settings cannot
            be changed afterwards.
        cards: GPUs of the framework. Empty on a machine without a GPU.
    """

    backend: str
    started: bool
    cards: tuple[CardStatus, ...]


_Key = TypeVar("_Key", str, str | None)

ESTIMATE_CATEGORIES = (*CATEGORIES, "cache", "workspace", "rounding")
"""Categories of memory in an estimate: the categories of a timeline and three more.

`"cache"` is the key-value cache of `generate`. `"workspace"` is scratch space of
kernels. `"rounding"` is the excess of allocations over requests.
"""

_LABELS = {"rounding": "allocator rounding"}

_WIDE = 0.25
"""Relative width from which an interval counts as wide."""

NO_LAYER = "(no layer)"
"""Label of bytes that belong to no layer."""


@dataclass(frozen=True)
class EstimatePart:
    """Bytes in use at the peak for one category and one layer.

    Args:
        category: One of `ESTIMATE_CATEGORIES`.
        layer: Path of the layer, or `None`.
        nbytes: Number of bytes.
    """

    category: str
    layer: str | None
    nbytes: int


@dataclass(frozen=True)
class EstimateBuffer:
    """A buffer in use at the peak, from the compiler's plan.

    Args:
        category: One of `ESTIMATE_CATEGORIES`.
        layer: Path of the layer, or `None`.
        nbytes: Size in bytes.
        shape: Shape such as `"[64,128]"`, or `""` if unknown.
        dtype: Data type such as `"float32"`, or `""` if unknown.
        operation: Name of the operation in the framework.
    """

    category: str
    layer: str | None
    nbytes: int
    shape: str
    dtype: str
    operation: str


class OfParts:
    """Base class of records with the parts of a memory peak."""

    parts: tuple[EstimatePart, ...]

    def by_category(self) -> dict[str, int]:
        """Returns the bytes per category, largest first."""
        return _largest_first((part.category, part.nbytes) for part in self.parts)

    def by_layer(self) -> dict[str | None, int]:
        """Returns the bytes per layer, largest first.

        The key of bytes without a layer is `None`.
        """
        return _largest_first((part.layer, part.nbytes) for part in self.parts)

    def layer_rows(self, most: int) -> list[str]:
        """Returns a line of text for each of the `most` largest layers."""
        largest = list(self.by_layer().items())[:most]
        return size_rows((layer or NO_LAYER, size) for layer, size in largest)


@dataclass(frozen=True)
class MemoryEstimate(OfParts, JsonRecord):
    """The estimated memory of a model.

    Args:
        peak_bytes: Peak bytes in use. For training, the peak of a step after the first;
            otherwise the peak of `predict`.
        low_bytes: Lower bound of the interval. The true peak lies within the interval
            in nine of ten cases.
        high_bytes: Upper bound of the interval.
        first_step_bytes: Peak of the first step, in which a backend may benchmark
            algorithms. `None` if the method cannot estimate this peak.
        first_step_low_bytes: Lower bound for the first step, or `None`.
        first_step_high_bytes: Upper bound for the first step, or `None`.
        parts: Bytes in use at the peak by category and layer. The sum is `peak_bytes`.
        batch_size: Number of samples in the batch.
        backend: `"tensorflow"`, `"jax"` or `"torch"`.
        jit_compile: Whether the step is compiled.
        device: `"gpu"`, `"cpu"`, or the name of a card.
        training: `True` for a training step, `False` for `predict`.
        method: `"analytic"`, `"traced"`, `"plan"` or `"measured"`.
        buffers: Largest temporary buffers at the peak, for the method `"plan"`.
        devices: Number of devices. `batch_size` is the global batch; bytes are per
            device.
        generate: Total length in tokens for `generate`, including the prompt. `None`
            for training and `predict`.
    """

    peak_bytes: int
    low_bytes: int
    high_bytes: int
    parts: tuple[EstimatePart, ...]
    batch_size: int
    backend: str
    jit_compile: bool
    device: str
    training: bool
    method: str
    first_step_bytes: int | None = None
    first_step_low_bytes: int | None = None
    first_step_high_bytes: int | None = None
    buffers: tuple[EstimateBuffer, ...] = ()
    devices: int = 1
    generate: int | None = None

    def verdict(self, memory_limit: int | str) -> str:
        """Returns whether the model fits into a memory limit.

        The first step is ignored: a backend skips algorithms that do not fit.

        Args:
            memory_limit: Bytes as an integer, or a string such as `"8GiB"`.

        Returns:
            `"fits"`, `"does not fit"`, or `"too close to call"` if the limit lies
            within the interval.
        """
        limit = parse_bytes(memory_limit, "verdict", "memory_limit")
        if self.high_bytes <= limit:
            return "fits"
        return "does not fit" if self.low_bytes > limit else "too close to call"

    @property
    def doing(self) -> str:
        """Description of the estimated task."""
        if self.generate is not None:
            return f"generate to {self.generate} tokens"
        return "training" if self.training else "predict"

    @property
    def where(self) -> str:
        """Description of the device or devices."""
        if self.devices == 1:
            return self.device
        return f"each of {self.devices} devices ({self.device})"

    @property
    def advice(self) -> str | None:
        """Advice for a more exact estimate, or `None`.

        XLA's plan of a compiled GPU step takes 10 to 100 seconds.
        """
        width = (self.high_bytes - self.low_bytes) / max(self.peak_bytes, 1)
        is_planned = self.method == "plan" or not self.jit_compile
        by_xla = self.backend in ("tensorflow", "jax") and self.device != "cpu"
        if is_planned or not by_xla or width < _WIDE:
            return None
        return (
            "The interval is wide. XLA's plan of the compiled step may narrow it: set "
            "method='plan' (--method plan) and the card, such as device='h200'."
        )

    def table(self, layers: int = 10) -> str:
        """Returns the peak, its categories and its largest layers as text.

        Args:
            layers: Number of layers to list, from 0. Defaults to 10.
        """
        compilation = "compiled" if self.jit_compile else "not compiled"
        lines = [
            f"estimated peak, {self.doing}, batch of {self.batch_size}, {self.backend} "
            f"({compilation}), {self.where}, method {self.method}:",
            f"  {format_bytes(self.peak_bytes)}, between "
            f"{format_bytes(self.low_bytes)} and {format_bytes(self.high_bytes)}",
        ]
        if self.first_step_bytes is not None:
            lines.append(f"  first step: {format_bytes(self.first_step_bytes)}")
        by_category = self.by_category()
        sizes = ((_LABELS.get(name, name), n) for name, n in by_category.items())
        lines += ["in use at the peak, by category:", *size_rows(sizes)]
        largest = self.layer_rows(layers)
        lines += ["in use at the peak, by layer:", *largest] if largest else []
        buffers = [(_text(buffer), buffer.nbytes) for buffer in self.buffers[:layers]]
        lines += ["largest buffers:", *size_rows(buffers)] if buffers else []
        lines += [self.advice] if self.advice else []
        return "\n".join(lines)

    def plot(self, layers: int = 8) -> Any:
        """Returns a bar chart of the peak by category and by layer.

        Args:
            layers: Number of layers to show, from 1. Defaults to 8.

        Returns:
            A chart that a notebook displays. `.save(path)` writes the image and
            `.figure` is the matplotlib figure.
        """
        return feature("estimate_plot")(self, layers)


def _text(buffer: EstimateBuffer) -> str:
    where = buffer.layer or NO_LAYER
    return f"{where}: {buffer.dtype}{buffer.shape} ({buffer.category})"


def _largest_first(items: Iterable[tuple[_Key, int]]) -> dict[_Key, int]:
    sums: dict[_Key, int] = {}
    for key, nbytes in items:
        sums[key] = sums.get(key, 0) + nbytes
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def size_rows(sizes: Iterable[tuple[str, int | None]]) -> list[str]:
    """Returns an aligned line of text for each name and its bytes."""
    texts = [
        (name, "unknown" if nbytes is None else format_bytes(nbytes))
        for name, nbytes in sizes
    ]
    width = max((len(name) for name, _ in texts), default=0)
    return [f"  {name:<{width}}  {text:>10}" for name, text in texts]
