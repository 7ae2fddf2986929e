"""What a model is expected to need on a device. Every figure in here is estimated."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from kerasmem.optional import feature
from kerasmem.records.plain import JsonRecord
from kerasmem.records.timeline import CATEGORIES
from kerasmem.units import format_bytes, parse_bytes


@dataclass(frozen=True)
class CardStatus:
    """One card that the framework uses or will use.

    Args:
        card: CUDA's number of the card, from 0 among those that the environment
            variable `CUDA_VISIBLE_DEVICES` leaves.
        limit_bytes: most bytes that this process takes of it; None without a limit,
            or where it cannot be told.
        growth: True if memory is taken as it is needed, False if all at the start.
        allocator: who gives out the memory: `"bfc"`, `"cuda_malloc_async"`, or the
            backend's own name for another.
        used_bytes: bytes in use by this process, from the framework's own allocator,
            which may hold more; 0 before the start.
        card_used_bytes: bytes in use on the whole card; None without NVML.
        card_total_bytes: bytes of the card; None without NVML.
        others_bytes: what other processes and the driver have of `card_used_bytes`;
            None where the driver does not tell how much this process has, as in a
            container.
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
    """What `kerasmem.memory.status` found out.

    Args:
        backend: the name of the Keras backend.
        started: True once the framework has its devices, when most of the settings
            cannot be changed any more.
        cards: the cards that the framework uses; empty on a machine without.
    """

    backend: str
    started: bool
    cards: tuple[CardStatus, ...]


_Key = TypeVar("_Key", str, str | None)

ESTIMATE_CATEGORIES = (*CATEGORIES, "cache", "workspace", "rounding", "pool")
"""What bytes are for: those of a timeline, and four more.

`"cache"` is of the keys and values of what is generated; an allocator alone knows:
`"workspace"` is scratch space of a kernel, `"rounding"` what the allocator gives beyond
the request, `"pool"` what it holds of the device and nobody uses at the peak.
"""

_WIDE = 0.25
"""Of an interval, as a share of the peak."""

NO_LAYER = "(no layer)"
"""What stands for the layer of bytes that belong to none."""


@dataclass(frozen=True)
class EstimatePart:
    """Bytes in use at the peak, of one category and one layer.

    Args:
        category: one of `ESTIMATE_CATEGORIES`.
        layer: path of the layer they belong to, None if they belong to none.
        nbytes: the bytes.
    """

    category: str
    layer: str | None
    nbytes: int


@dataclass(frozen=True)
class EstimateBuffer:
    """A buffer in use at the peak, as the compiler planned it.

    Args:
        category: one of `ESTIMATE_CATEGORIES`.
        layer: path of the layer that it belongs to, None if it belongs to none.
        nbytes: its bytes.
        shape: such as `"[64,128]"`, `""` if it has none.
        dtype: such as `"float32"`, `""` likewise.
        operation: the framework's name of the operation that makes it.
    """

    category: str
    layer: str | None
    nbytes: int
    shape: str
    dtype: str
    operation: str


class OfParts:
    """A record of the parts of a peak, by category and by layer."""

    parts: tuple[EstimatePart, ...]

    def by_category(self) -> dict[str, int]:
        """Return the bytes of each category that has any, most first."""
        return _largest_first((part.category, part.nbytes) for part in self.parts)

    def by_layer(self) -> dict[str | None, int]:
        """Return the bytes of each layer, most first; None stands for no layer."""
        parts = (part for part in self.parts if part.category != "pool")
        return _largest_first((part.layer, part.nbytes) for part in parts)

    def layer_rows(self, most: int) -> list[str]:
        """Return a line of text for each of the `most` largest layers."""
        largest = list(self.by_layer().items())[:most]
        return size_rows((layer or NO_LAYER, size) for layer, size in largest)


@dataclass(frozen=True)
class MemoryEstimate(OfParts, JsonRecord):
    """The memory that a model is estimated to need.

    Args:
        peak_bytes: most bytes in use at once: while training in a step after the
            first, else in `predict`. Nine times in ten the truth lies between
            `low_bytes` and `high_bytes`.
        low_bytes: lower end of that interval.
        high_bytes: upper end of that interval.
        first_step_bytes: peak of the first step, in which a backend may try out
            algorithms; None if the method cannot tell.
        first_step_low_bytes: lower end of its interval; None with it.
        first_step_high_bytes: upper end of its interval; None with it.
        parts: what is in use at the peak. They add up to `peak_bytes`, those of the
            category `"pool"` apart, which stand beside it.
        batch_size: samples in the batch.
        backend: `"tensorflow"`, `"jax"` or `"torch"`.
        jit_compile: whether the step is compiled.
        device: `"gpu"`, `"cpu"`, or the card that was named.
        training: True for a training step, False for `predict`.
        method: how it was found: `"analytic"`, `"traced"`, `"plan"` or `"measured"`.
        buffers: the largest buffers of the temporary memory at the peak; of a plan.
        devices: number of devices that share the training. `batch_size` is what all
            of them get, all bytes are those of one.
        generate: tokens of a sequence that `generate` makes, prompt and all; None for
            a step of training or `predict`.
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
        """Return whether it fits into a limit, in words.

        The answer is `"fits"`, `"does not fit"`, or `"too close to call"` if the limit
        lies within the interval. The first step does not count: an algorithm for which
        there is no room is not tried out.

        Args:
            memory_limit: bytes, or a text such as `"8GiB"`.
        """
        limit = parse_bytes(memory_limit)
        if self.high_bytes <= limit:
            return "fits"
        return "does not fit" if self.low_bytes > limit else "too close to call"

    @property
    def doing(self) -> str:
        """What it is an estimate of, in words."""
        if self.generate is not None:
            return f"generate to {self.generate} tokens"
        return "training" if self.training else "predict"

    @property
    def where(self) -> str:
        """The device in words, one of several where there are."""
        if self.devices == 1:
            return self.device
        return f"each of {self.devices} devices ({self.device})"

    @property
    def advice(self) -> str | None:
        """What would tell more exactly, None where nothing would.

        The step of a GPU that XLA compiles has a plan, which takes 10 to 100 seconds.
        """
        width = (self.high_bytes - self.low_bytes) / max(self.peak_bytes, 1)
        is_planned = self.method == "plan" or not self.jit_compile
        by_xla = self.backend in ("tensorflow", "jax") and self.device != "cpu"
        if is_planned or not by_xla or width < _WIDE:
            return None
        return (
            "The interval is wide. XLA's own plan of the compiled step may tell more: "
            "method='plan' (--method plan) and the card, such as device='h200'."
        )

    def table(self, layers: int = 10) -> str:
        """Return the estimate as text: the peak, its categories, its largest layers.

        Args:
            layers: number of layers to list, from 0.
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
        lines += ["by category:", *size_rows(self.by_category().items())]
        largest = self.layer_rows(layers)
        lines += ["by layer:", *largest] if largest else []
        buffers = [(_text(buffer), buffer.nbytes) for buffer in self.buffers[:layers]]
        lines += ["largest buffers:", *size_rows(buffers)] if buffers else []
        lines += [self.advice] if self.advice else []
        return "\n".join(lines)

    def plot(self, layers: int = 8) -> Any:
        """Return a picture of the peak: bars by category and by layer.

        Args:
            layers: number of layers, the largest ones, from 1.

        Returns:
            A picture that a notebook shows; `.save(path)` writes it, `.figure` is
            matplotlib's.
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
    """Return a line of text for each name and its bytes; None is unknown."""
    texts = [
        (name, "unknown" if nbytes is None else format_bytes(nbytes))
        for name, nbytes in sizes
    ]
    width = max((len(name) for name, _ in texts), default=0)
    return [f"  {name:<{width}}  {text:>10}" for name, text in texts]
