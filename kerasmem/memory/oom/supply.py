"""What there was of a device's memory when a request was refused."""

from dataclasses import dataclass

from kerasmem.backends.exhaustion import Refusal
from kerasmem.backends.refusals import PoolState
from kerasmem.memory.oom.device import DeviceFigures


@dataclass(frozen=True)
class Supply:
    """The memory that there was; None where nobody told.

    Args:
        limit_bytes: most bytes to be had of the device.
        in_use_bytes: bytes in use.
        free_bytes: bytes that were free for certain, in whatever pieces.
        largest_free_bytes: the largest piece that could have been had.
    """

    limit_bytes: int | None
    in_use_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None


def supply_of(
    refusal: Refusal, figures: DeviceFigures, state: PoolState | None
) -> Supply:
    """Return what there was, by the best source there is.

    Args:
        refusal: what the error says.
        figures: what is known of the device by now.
        state: of the allocator's pool when it refused, None if it was not noted.
    """
    if state is not None:
        return _of_pool(state, figures.limit_bytes, refusal.requested_bytes)
    if refusal.in_use_bytes is not None:
        return Supply(refusal.limit_bytes, refusal.in_use_bytes, refusal.free_bytes)
    limit, peak = figures.limit_bytes, figures.peak_bytes
    if limit is None or peak is None or not figures.limit_is_exact:
        return Supply(limit)
    # No more than the peak can have been in use; what is in use by now says nothing.
    return Supply(limit, free_bytes=limit - peak)


def _of_pool(state: PoolState, limit: int | None, asked: int | None) -> Supply:
    more = 0 if limit is None else max(limit - state.pool_bytes, 0)
    if asked is None or more >= asked:
        # The pool would have been extended: less can be had of the device than that.
        more = 0
    return Supply(
        limit_bytes=state.pool_bytes + more,
        in_use_bytes=state.in_use_bytes,
        free_bytes=state.pool_bytes + more - state.in_use_bytes,
        largest_free_bytes=max(state.largest_free_bytes, more),
    )
