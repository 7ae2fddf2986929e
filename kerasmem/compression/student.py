"""A student made from its teacher: the same network, narrower or with fewer blocks."""

from typing import Any

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.fields import is_number
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.clone import clone, compile_as
from kerasmem.graph.layers import listed_graph
from kerasmem.graph.repeats import repeated, without


def make_student(
    teacher: Any,
    ratio: float | None = None,
    *,
    of: str = "parameters",
    depth: float | None = None,
) -> Any:
    """Return a smaller copy of `teacher` with the weights of what it keeps.

    Narrower: the channels with the smallest weights are left out of every layer. Less
    deep: of blocks that repeat each other, such as residual blocks or layers of an
    encoder, a share stays, evenly spread. Compile settings are the teacher's; the
    optimizer starts anew.

    Args:
        teacher: a built model with a graph, which is not changed.
        ratio: share that the student keeps of its width, in (0, 1); None for all.
        of: what `ratio` is a share of: `"parameters"`, `"multiplications"` or
            `"channels"`.
        depth: share that it keeps of the blocks of every stage that can be left out,
            in [0, 1); None for all. Blocks that change a shape always stay.

    Raises:
        ConfigError: if a value is out of its range, or neither share is given.
        ModelError: if the teacher has no channels, or no blocks, that could be left
            out.

    Example:
        >>> student = make_student(teacher, 0.25)  # doctest: +SKIP
    """
    if ratio is None and depth is None:
        raise ConfigError(
            "The student is narrower or less deep than its teacher. Received: "
            "ratio=None, depth=None."
        )
    if ratio is not None:
        _check_share("ratio", ratio, lowest_is_allowed=False)
    student = teacher
    if depth is not None:
        _check_share("depth", depth, lowest_is_allowed=True)
        student = _less_deep(student, depth)
    if ratio is not None:
        student, _ = PruneChannels(1 - ratio, of=of).applied(student)
    student = clone(student) if student is teacher else student
    compile_as(student, teacher)
    return student


def _less_deep(teacher: Any, depth: float) -> Any:
    """Return `teacher` without some of the parts that repeat each other."""
    stages = repeated(teacher) if listed_graph(teacher) is not None else []
    left_out = [part for parts in stages for part in _spread(parts, depth)]
    if not left_out:
        found = sum(map(len, stages))
        raise ModelError(
            f"The model {teacher.name!r} has {found} parts that repeat each other and "
            f"could be left out, so none of them goes. Received: depth={depth!r}."
        )
    return without(teacher, left_out)


def _spread(parts: list[Any], depth: float) -> list[Any]:
    """Return all but a share of `parts`; those that stay are evenly spread."""
    stay = round(depth * len(parts))
    kept = {(2 * place + 1) * len(parts) // (2 * stay) for place in range(stay)}
    return [part for place, part in enumerate(parts) if place not in kept]


def _check_share(name: str, value: Any, *, lowest_is_allowed: bool) -> None:
    fits = is_number(value) and (value >= 0 if lowest_is_allowed else value > 0)
    if not fits or not value < 1:
        lowest = "at least 0" if lowest_is_allowed else "above 0"
        raise ConfigError(
            f"The student keeps a share of its teacher, {lowest} and less than 1. "
            f"Received: {name}={value!r}."
        )
