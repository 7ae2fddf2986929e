"""The choice of how a teacher's answers are kept on disk."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kerasmem.errors import ConfigError

DTYPES = ("float16", "float32")


@dataclass(frozen=True)
class Cache:
    """A folder that keeps what a teacher answers, so that it is asked only once.

    Args:
        folder: where; made if it is not there. It belongs to one teacher and one set
            of samples.
        top_k: of logits and class probabilities only so many are kept, the largest,
            with one value for all others; None for all.
        dtype: `"float16"` or `"float32"`.
        batch_size: samples that the teacher is asked about at a time.

    Raises:
        ConfigError: if a value is out of its range.
    """

    folder: str | Path
    _: KW_ONLY
    top_k: int | None = None
    dtype: str = "float16"
    batch_size: int = 256

    def __post_init__(self) -> None:
        if not isinstance(self.folder, (str, Path)) or not str(self.folder):
            raise ConfigError(
                f"A cache is in a folder. Received: folder={self.folder!r}."
            )
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"The dtype of a cache is one of {', '.join(DTYPES)}. "
                f"Received: dtype={self.dtype!r}."
            )
        counts = {"batch_size": self.batch_size, "top_k": self.top_k}
        for field, count in counts.items():
            if field == "top_k" and count is None:
                continue
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ConfigError(
                    f"The {field} of a cache is a whole number from 1. "
                    f"Received: {field}={count!r}."
                )


def as_cache(given: Any) -> Cache | None:
    """Return the choice that a folder's name or a `Cache` stands for."""
    return given if given is None or isinstance(given, Cache) else Cache(given)


def stored(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array in the dtype of a cache, no entry beyond its largest number."""
    limit = np.finfo(dtype).max
    return np.clip(array, -limit, limit).astype(dtype)
