"""Out-of-memory messages of all frameworks in one form."""

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.units import parse_bytes

_NAMES = frozenset({"OutOfMemoryError", "ResourceExhaustedError"})
_WORDS = (
    "RESOURCE_EXHAUSTED",
    "Resource exhausted",
    "out of memory",
    "Out of memory",
    "can't allocate memory",
    "not enough memory: you tried to allocate",
    "OOM when allocating",
    "alloc failed",
    "STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` is an out-of-memory error of a framework.

    The name and the text decide, because the classes differ and JAX and torch also
    raise generic ones.

    Example:
        >>> is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory")), (
        ...     is_out_of_memory(ValueError("shapes differ")))
        (True, False)
    """
    if isinstance(error, MemoryError) or type(error).__name__ in _NAMES:
        return True
    return any(word in str(error) for word in _WORDS)


def complaint(text: str) -> str:
    """Return the part of an error text that concerns memory, in one line.

    TensorFlow's texts start with a long description of the operation.
    """
    lines = text.splitlines()
    about = (n for n, line in enumerate(lines) if any(word in line for word in _WORDS))
    return " ".join(_HINT.sub("", "\n".join(lines[next(about, 0) :])).split())


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A failed allocation, parsed from an error text.

    Missing values are None or `""`. Free bytes may be in any number of blocks.
    `is_tensor` is False for a compiled step, which requests all of its memory at once.
    """

    requested_bytes: int | None = None
    shape: str = ""
    dtype: str = ""
    operation: str = ""
    device: str | None = None
    limit_bytes: int | None = None
    in_use_bytes: int | None = None
    free_bytes: int | None = None
    is_tensor: bool = False
    in_pipeline: bool = False


def read_refusal(text: str) -> Refusal:
    """Parse the out-of-memory text of any framework or of NumPy.

    Example:
        >>> read_refusal("OOM when allocating tensor with shape[64,8] and type float "
        ...     "on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
        ... ).requested_bytes
        2048
    """
    tensor = _TENSOR.search(text) or _ARRAY.search(text)
    operation = _operation(text)
    return Refusal(
        requested_bytes=_tensor_bytes(tensor) if tensor else _asked(text),
        shape=f"[{tensor['shape'].replace(' ', '').rstrip(',')}]" if tensor else "",
        dtype=tensor["dtype"] if tensor else "",
        operation=operation,
        device=_device(text),
        is_tensor=tensor is not None or bool(_OF_TORCH.search(text)),
        in_pipeline=bool(_PIPELINE.search(text)) or operation in _PYTHON_IN_PIPELINE,
        **_of_cuda(text),
    )


_HINT = re.compile(r"Hint: If you want to see a list of allocated tensors.*")
_AMOUNT = r"(\d[\d.]* ?(?:[KMGT]iB|B|bytes))"
_TENSOR = re.compile(
    r"allocating tensor with shape\[(?P<shape>[\d,]*)\] and type (?P<dtype>\w+)"
)
_ARRAY = re.compile(
    r"array with shape \((?P<shape>[\d, ]*)\) and data type (?P<dtype>\w+)"
)
_ASKED = (
    re.compile(r"\((\d+B)\)"),  # XLA adds the exact number after the rounded one
    re.compile(rf"(?:allocating|allocate|request for) {_AMOUNT}"),
)
_NODE = re.compile(r"Detected at node (\S+) defined|\[\[\{?\{?node ([^\s}\]]+)")
_EAGER = re.compile(r"\[Op:(?!_)(\w+)")
_STEP = re.compile(r"trying to allocate.*\[Op:__inference_")
_OF_TORCH = re.compile(r"CUDA out of memory|DefaultCPUAllocator")
_PIPELINE = re.compile(
    r"passed to \w+Dataset|\[Op:(?:IteratorGetNext|MakeIterator)|"
    r"node (?:\S+/)?(?:IteratorGetNext|MakeIterator)|"
    r"Failed to allocate memory for the batch of component"
)
_PYTHON_IN_PIPELINE = frozenset({"PyFunc", "EagerPyFunc"})
_TENSORFLOW_DEVICE = re.compile(r"device:(\w+:\d+)")
_CUDA_DEVICE = re.compile(r"\bGPU (\d+)\b")
_XLA_DEVICE = re.compile(r"device ordinal (\d+)")
_FIGURES = {
    "capacity": re.compile(rf"total capacity of {_AMOUNT}|{_AMOUNT} total capacity"),
    "allowed": re.compile(rf"{_AMOUNT} allowed"),
    "free": re.compile(rf"of which {_AMOUNT} is free|{_AMOUNT} free;"),
    "used": re.compile(rf"{_AMOUNT} (?:is|already) allocated"),
    "unused": re.compile(rf"{_AMOUNT} is reserved by PyTorch but"),
}
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}
_NARROW = re.compile(r"bfloat(16)|float(8)")


def _tensor_bytes(tensor: re.Match[str]) -> int | None:
    name = tensor["dtype"]
    entries = math.prod(int(n) for n in re.findall(r"\d+", tensor["shape"]))
    narrow = _NARROW.match(name)
    if narrow:
        return entries * int(narrow[1] or narrow[2]) // 8
    try:
        return entries * np.dtype(_DTYPES.get(name, name)).itemsize
    except TypeError:
        return None


def _asked(text: str) -> int | None:
    match = next(filter(None, (one.search(text) for one in _ASKED)), None)
    return _bytes(match) if match else None


def _bytes(match: re.Match[str]) -> int:
    amount = next(filter(None, match.groups()))
    return parse_bytes(amount.replace("bytes", "B"))


def _operation(text: str) -> str:
    node = _NODE.search(text)
    if node:
        return node[1] or node[2]
    if _STEP.search(text):
        return "compiled step"
    eager = _EAGER.search(text)
    return eager[1] if eager else ""


def _device(text: str) -> str | None:
    if "DefaultCPUAllocator" in text:
        return "cpu"
    for pattern, name in (
        (_TENSORFLOW_DEVICE, "{}"),
        (_XLA_DEVICE, "gpu:{}"),
        (_CUDA_DEVICE, "cuda:{}"),
    ):
        if match := pattern.search(text):
            return name.format(match[1])
    return None


def _of_cuda(text: str) -> dict[str, Any]:
    matches = {name: one.search(text) for name, one in _FIGURES.items()}
    figures = {name: _bytes(match) for name, match in matches.items() if match}
    if "capacity" not in figures or "used" not in figures:
        return {}
    unused_bytes = figures.get("unused", 0)
    free = figures.get("free", 0)
    if "allowed" in figures:
        free = min(free, max(figures["allowed"] - figures["used"] - unused_bytes, 0))
    return {
        "limit_bytes": figures.get("allowed", figures["capacity"]),
        "in_use_bytes": figures["used"],
        "free_bytes": free + unused_bytes,
    }


@dataclass(frozen=True)
class PoolState:
    """The pool of an allocator at one point in time."""

    in_use_bytes: int
    pool_bytes: int
    largest_free_bytes: int


class RefusalLog:
    """Log of failed allocations. This one stays empty, for unsupported frameworks."""

    def fullest(self) -> PoolState | None:
        """Return the logged pool state with the most bytes in use, and clear the log.

        None if there was no failure, or if the framework does not support it.
        """
        return None
