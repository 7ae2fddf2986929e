"""Creates a student from its teacher by reducing width or depth.

Only models built from arguments, such as KerasHub models, have an argument for the
number of blocks.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from kerasmem.checks import Real
from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.arguments import (
    Pair,
    arguments,
    is_made_of_arguments,
    made_with,
)
from kerasmem.graph.clone import clone, compile_as
from kerasmem.graph.values import to_numpy
from kerasmem.types import Model


def make_student(
    teacher: Model,
    ratio: float | None = None,
    *,
    of: str = "parameters",
    depth: float | None = None,
) -> Any:
    """Creates a student: a smaller copy of `teacher` that inherits its weights.

    `ratio` reduces the width: each layer loses the channels with the smallest weights.
    `depth` reduces the number of layers in the config of a KerasHub model. The kept
    layers are evenly spaced.

    Args:
        teacher: A built model with a graph. It is not changed.
        ratio: Float in (0, 1]. Fraction of the width to keep. `None` or 1 keeps the
            full width, and `depth` is then required.
        of: Quantity that `ratio` refers to: `"parameters"`, `"multiplications"` or
            `"channels"`. Defaults to `"parameters"`.
        depth: Float in [0, 1). Fraction of `num_layers` of a KerasHub model to keep,
            at least one layer. Defaults to `None` for all layers.

    Returns:
        The student, compiled like the teacher with a new optimizer.

    Raises:
        ConfigError: If a value is out of range, or both fractions are missing.
        ModelError: If the teacher has no channels, or no layer count, to reduce.

    Example:
        >>> import keras
        >>> layers = [keras.layers.Dense(16), keras.layers.Dense(2)]
        >>> teacher = keras.Sequential([keras.Input((4,)), *layers])
        >>> make_student(teacher, 0.5, of="channels").layers[0].units
        8
    """
    if ratio is None and depth is None:
        raise ConfigError(
            "Expected ratio or depth, to make the student smaller than its teacher. "
            "Received: ratio=None, depth=None."
        )
    if ratio is not None:
        interval = Real(above=0, below=1) if depth is None else Real(above=0, most=1)
        interval.check("make_student", "ratio", ratio)
    student = teacher
    if depth is not None:
        Real(least=0, below=1).check("make_student", "depth", depth)
        student = _less_deep(student, depth)
    if ratio is not None and ratio < 1:
        student, _ = apply_technique(PruneChannels(1 - ratio, of=of), student)
    student = clone(student) if student is teacher else student
    compile_as(student, teacher)
    return student


def _less_deep(teacher: Model, depth: float) -> Any:
    """Returns `teacher` with fewer blocks in its config, and their weights.

    The kept blocks are evenly spaced. A block only moves to the position of a block of
    the same kind, such as sliding-window attention.
    """
    config = arguments(teacher) if is_made_of_arguments(teacher) else {}
    counts = {
        place: value
        for place, value in config.items()
        if _LAYERS.fullmatch(place[-1]) and type(value) is int and value > 1
    }
    changes = {place: max(round(depth * n), 1) for place, n in counts.items()}
    if changes == counts:
        raise ModelError(
            f"The config of the model {teacher.name!r} has no layer count to reduce. "
            "Expected: an argument such as num_layers, at least 2, that decreases "
            f"with depth={depth!r}. Received: "
            f"{ {place[-1]: n for place, n in counts.items()} }."
        )

    def values(pairs: Sequence[Pair]) -> Iterator[tuple[Any, Any]]:
        return ((new, to_numpy(old)) for old, new in pairs)

    student, _ = made_with(teacher, changes, values)
    return student


_LAYERS = re.compile(r"([a-z]+_)?num_(encoder_|decoder_|hidden_)?layers")
