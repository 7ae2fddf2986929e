"""What a training step does now and then."""

from collections.abc import Callable
from typing import Any

import keras


def if_due(
    is_due: Any, compute: Callable[[], Any], otherwise: Callable[[], Any]
) -> Any:
    """Return what `compute` returns, where it is not due what `otherwise` returns.

    Args:
        is_due: whether it is; where the step is compiled a boolean tensor.
        compute: makes a tensor.
        otherwise: makes one of the same shape and type.
    """
    if isinstance(is_due, bool):
        return compute() if is_due else otherwise()
    return keras.ops.cond(is_due, compute, otherwise)
