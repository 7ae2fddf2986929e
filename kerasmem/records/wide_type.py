"""Numbers that take more bytes than they need."""

from dataclasses import dataclass


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
