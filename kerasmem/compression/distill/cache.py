"""How a teacher's answers are kept on disk and given to a batch."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from kerasmem.compression.fields import Whole, check_fields
from kerasmem.errors import ConfigError


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
    top_k: Annotated[int, Whole(1)] | None = None
    dtype: Annotated[str, ("float16", "float32")] = "float16"
    batch_size: Annotated[int, Whole(1)] = 256

    def __post_init__(self) -> None:
        if not isinstance(self.folder, (str, Path)) or not str(self.folder):
            raise ConfigError(
                f"A cache is in a folder. Received: folder={self.folder!r}."
            )
        check_fields(self)


def as_cache(given: Any) -> Cache | None:
    """Return the choice that a folder's name or a `Cache` stands for."""
    return given if given is None or isinstance(given, Cache) else Cache(given)


def stored(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array in the dtype of a cache, no entry beyond its largest number."""
    limit = np.finfo(dtype).max
    return np.clip(array, -limit, limit).astype(dtype)


def whole(kept: Any, classes: int) -> Any:
    """Return kept answers as a float32 tensor of all classes.

    Args:
        kept: a tensor, or what `top` made of one.
        classes: length of the last axis.
    """
    if not isinstance(kept, dict):
        return ops.cast(kept, "float32")
    rest = ops.cast(kept["rest"], "float32")
    above = ops.cast(kept["values"], "float32") - rest
    places = ops.one_hot(ops.cast(kept["places"], "int32"), classes, dtype="float32")
    return rest + ops.sum(places * ops.expand_dims(above, -1), axis=-2)


def top(logits: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """Return the largest logits, where they are, and one value for all others.

    That value gives the others together the probability that they had at temperature
    1, in equal parts.

    Args:
        logits: (..., classes).
        count: how many are kept, less than the classes.
    """
    places = np.argpartition(-logits, count - 1, axis=-1)[..., :count]
    values = np.take_along_axis(logits, places, axis=-1)
    others = logits.astype("float64")
    np.put_along_axis(others, places, -np.inf, axis=-1)
    highest = others.max(axis=-1, keepdims=True)
    mean = np.exp(others - highest).sum(axis=-1, keepdims=True)
    mean /= logits.shape[-1] - count
    rest = highest + np.log(mean)
    return {"places": places, "values": values, "rest": rest.astype("float32")}


_INPUTS, _ANSWERS = "kerasmem_inputs", "kerasmem_answers"


def with_answers(x: Any, answers: Iterable[Iterable[Any]]) -> dict[str, Any]:
    """Return inputs and answers as one structure that `fit` takes for `x`.

    Args:
        x: inputs of the student.
        answers: of every teacher what it gave: its outputs, flat, then its features.
    """
    # Tuples, because tf.data takes no lists.
    return {_INPUTS: x, _ANSWERS: tuple(map(tuple, answers))}


def split_answers(x: Any) -> tuple[Any, Sequence[Sequence[Any]] | None]:
    """Return inputs, and the answers if they are there."""
    if isinstance(x, dict) and set(x) == {_INPUTS, _ANSWERS}:
        return x[_INPUTS], x[_ANSWERS]
    return x, None


KEY_BYTES = 16


def sample_keys(x: Any) -> list[bytes]:
    """Return a digest of every sample of a batch.

    Args:
        x: inputs: an array, or a dict or list of arrays.
    """
    arrays = [np.ascontiguousarray(to_array(leaf)) for leaf in keras.tree.flatten(x)]
    rows = [array.reshape(len(array), -1) for array in arrays]
    head = "".join(f"{a.dtype}{a.shape[1:]}" for a in arrays).encode()
    return [
        hashlib.blake2b(
            b"".join((head, *(part[i].tobytes() for part in rows))),
            digest_size=KEY_BYTES,
        ).digest()
        for i in range(len(rows[0]))
    ]


def to_array(value: Any) -> np.ndarray:
    """Return an array or a tensor as a NumPy array."""
    return value if isinstance(value, np.ndarray) else keras.ops.convert_to_numpy(value)
