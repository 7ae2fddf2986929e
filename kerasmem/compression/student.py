"""A student made from its teacher: the same network, narrower."""

from typing import Any

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.distill.schedules import is_number
from kerasmem.errors import ConfigError
from kerasmem.graph.clone import clone


def make_student(teacher: Any, ratio: float, *, of: str = "parameters") -> Any:
    """Return a narrower copy of `teacher` with the weights of the channels it keeps.

    The channels with the smallest weights are left out of every layer. Compile settings
    are the teacher's; the optimizer starts anew.

    Args:
        teacher: a built model with a graph, which is not changed.
        ratio: share that the student keeps, in (0, 1).
        of: what `ratio` is a share of: `"parameters"`, `"multiplications"` or
            `"channels"`.

    Raises:
        ConfigError: if a value is out of its range.
        ModelError: if the teacher has no channels that could be left out.

    Example:
        >>> student = make_student(teacher, 0.25)  # doctest: +SKIP
    """
    if not is_number(ratio) or not 0 < ratio < 1:
        raise ConfigError(
            "The student keeps a share of its teacher, above 0 and less than 1. "
            f"Received: ratio={ratio!r}."
        )
    smaller, _ = PruneChannels(1 - ratio, of=of).applied(teacher)
    return clone(smaller)
