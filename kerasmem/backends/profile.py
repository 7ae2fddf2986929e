"""What a framework's memory profiler saw, before anybody asked what it means."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """The allocation or the free of one block.

    Args:
        time_ns: when, in nanoseconds; in a plan the number of the instruction.
        is_allocation: False for a free.
        address: of the block.
        requested_bytes: what was asked for.
        given_bytes: what the allocator gave.
        in_use_bytes: bytes in use after the event, by the allocator's own count.
        fragmentation: share of the pool's free bytes outside of its largest free
            block, 0 to 1; None if the allocator does not say.
        reserved_bytes: bytes of the pool; None if the allocator does not say.
        operation: the framework's name of what allocated, `""` if unknown.
        layer: path of the Keras layer, if the framework says so itself.
        phase: one of `records.PHASES`, if the framework says so itself.
        is_scratch: whether an operation asked for its own use, not for a result.
        shape: such as `"[64,128]"`, `""` if unknown.
        dtype: such as `"float32"`, `""` if unknown.
        thread: a number for the thread that did it.
    """

    time_ns: int
    is_allocation: bool
    address: int
    requested_bytes: int
    given_bytes: int
    in_use_bytes: int
    fragmentation: float | None = None
    reserved_bytes: int | None = None
    operation: str = ""
    layer: str | None = None
    phase: str = "unknown"
    is_scratch: bool = False
    shape: str = ""
    dtype: str = ""
    thread: int = 0


@dataclass(frozen=True)
class AllocatorTrace:
    """The events of one allocator.

    Args:
        allocator: the framework's name of the allocator or device.
        device: name of the device whose memory it is, as in `Storage.device`.
        source: as in `records.Timeline`.
        events: every event; those of one thread in the order in which they came.
        rounding_bytes: the allocator gives at least the next multiple of this.
    """

    allocator: str
    device: str
    source: str
    events: Sequence[MemoryEvent]
    rounding_bytes: int = 1


@dataclass(frozen=True)
class Storage:
    """Where the value of a variable lies, or another tensor that Python holds.

    Args:
        variable: index of the variable among those asked for, None for a tensor.
        device: name of the device.
        address: of the first byte, None if the framework does not say.
        nbytes: bytes of the value.
    """

    variable: int | None
    device: str
    address: int | None
    nbytes: int


@dataclass(frozen=True)
class Followed:
    """What a profiler has to know of a model.

    Args:
        model: the compiled model.
        layers: every layer with its path; the model's own is empty.
        variables: its `keras.Variable`s and the optimizer's; those that the first step
            makes are added before the profiler stops.
    """

    model: Any
    layers: Sequence[tuple[Any, str]]
    variables: list[Any]


@dataclass(frozen=True)
class Profile:
    """What a profiler saw.

    Args:
        traces: one per allocator.
        opening: where the variables lay in the beginning, and other tensors that
            Python held, where the framework can tell.
        closing: the same in the end.
        problem: what a user should know of that is missing, `""` if nothing is.
    """

    traces: Sequence[AllocatorTrace]
    opening: Sequence[Storage] = ()
    closing: Sequence[Storage] = ()
    problem: str = ""


class MemoryProfiler(Protocol):
    """Watches the allocators of a framework for a while."""

    names: str
    """How operations are named: `"tensorflow"`, `"xla"`, or `"given"` for events
    that name layer and phase themselves."""

    def start(self) -> None:
        """Begin.

        Raises:
            ProfilerUnavailableError: if that cannot be; the message says what to do.
        """
        ...

    def stop(self) -> Profile:
        """End, leave nothing behind, and return what happened."""
        ...
