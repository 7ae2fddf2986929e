"""Scratch space of TensorFlow's convolutions on a CPU.

Going backward, every patch under the kernel is written out in a row, for as many images
as fill the cache, be there so many in the batch or not; for one at a time where the
threads share an image. The rule is that of its kernels, and gives what was recorded.
oneDNN's kernels, which TensorFlow takes unless it is told not to, write out nothing.
"""

import math
import os
import sys
from collections.abc import Sequence

_CACHE = 30 << 20
"""Bytes of the last cache of a processor, as TensorFlow takes them to be."""
_CACHE_OF_A_CORE = 256 << 10
"""Bytes of the second cache, likewise."""


def unrolled_bytes(
    image: Sequence[int], kernel: Sequence[int], batch_size: int, width: int
) -> tuple[int, int]:
    """Return the scratch bytes of the gradient of a kernel, and of that of its input.

    They are none where oneDNN runs convolutions.

    Args:
        image: shape of one image that the convolution makes, channels last.
        kernel: shape of the kernel, the channels made last.
        batch_size: images in the batch.
        width: bytes of an entry.
    """
    if in_one_dnn():
        return 0, 0
    patches = math.prod(image[:-1]) * math.prod(kernel[:-1])
    work = (patches + math.prod(image) + math.prod(kernel)) * width
    filled = -(-_CACHE // work) * patches * width
    shared = batch_size == 1 or work // threads() >= _CACHE_OF_A_CORE
    return filled, patches * width if shared else filled


def in_one_dnn() -> bool:
    """Return whether oneDNN runs the convolutions of a TensorFlow started like this."""
    said = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower()
    return sys.platform != "darwin" and said not in ("0", "false")


def threads() -> int:
    """Return the number of threads that run operations at once."""
    if hasattr(os, "sched_getaffinity"):  # a container may have a part of the cores
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
