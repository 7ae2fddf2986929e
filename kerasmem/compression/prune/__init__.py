"""The choice of which weights become zero, and when."""

import math
import re
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Annotated, Any, ClassVar

from kerasmem.checks import PATTERNS, ByPattern, OneOf, Patterns, Real, Whole
from kerasmem.compression.prune.schedules import (
    Constant,
    Cosine,
    Iterative,
    Polynomial,
    RigL,
    Schedule,
    Splicing,
    as_schedule,
    final_sparsity,
)
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError

ERDOS_RENYI, ERDOS_RENYI_KERNEL = "erdos_renyi", "erdos_renyi_kernel"
SCOPES = ("layer", "global", ERDOS_RENYI, ERDOS_RENYI_KERNEL)
GRADIENT, INPUTS = "gradient", "inputs"
CRITERIA: dict[str, str | None] = {
    "magnitude": None,
    "magnitude/rms": None,
    "taylor": GRADIENT,
    "movement": GRADIENT,
    "wanda": INPUTS,
    "random": None,
}
"""The criteria by name, and what each has to know besides the weights."""

UNSTRUCTURED = "unstructured"
_LARGEST_GROUP = 1 << 16
_SPARSITY = Real("the share of weights that becomes zero,", least=0, below=1)


@dataclass(frozen=True)
class Prune(Technique):
    """Weight pruning: set the weights that matter least to zero.

    Pruned are kernels and embedding tables; depthwise kernels and the output layer only
    if `include` or `ratios` names them, and any other float weight likewise. In
    `km.compress` all are set at once. In `km.callbacks.Pruning` the sparsity rises on
    the schedule.

    Sources: Han, Pool, Tran and Dally, "Learning both Weights and Connections for
    Efficient Neural Networks", 2015 (magnitude); Zhu and Gupta, "To prune, or not to
    prune", 2017 (the schedule); Molchanov, Mallya, Tyree, Frosio and Kautz, "Importance
    Estimation for Neural Network Pruning", 2019 (Taylor); Sanh, Wolf and Rush,
    "Movement Pruning", 2020; Sun, Liu, Bair and Kolter, "A Simple and Effective Pruning
    Approach for Large Language Models" (Wanda), 2023; Mishra et al., "Accelerating
    Sparse Deep Neural Networks", 2021 (2:4).

    Args:
        sparsity: share of the weights that becomes zero, in [0, 1).
        scope: `"layer"` removes this share from every weight array; `"global"` from all
            together, more where the weights matter less; a list of regular expressions
            from all together whose path holds the same; `"erdos_renyi"` and
            `"erdos_renyi_kernel"` less from small arrays than from large ones.
        criterion: what matters: `"magnitude/rms"`, the absolute value over its array's
            root mean square (within one array the same as `"magnitude"`); `"taylor"`,
            `"movement"`, `"wanda"`, which take data; `"random"`.
        pattern: `"unstructured"`; `"2:4"` for two that stay of every four along the
            axis that is summed over; lengths of a block, such as `(4, 4)`.
        schedule: when, in a training: a schedule of `kerasmem.compression.prune` or one
            of tfmot's; by default a cubic rise from `begin` to `end`.
        include: regular expressions; a weight whose path holds one is pruned too, or
            whose layer is of a class of that name.
        exclude: likewise; such a weight is left alone.
        ratios: regular expression to sparsity; a weight whose path holds it gets this
            sparsity of its own. The first that holds counts.
        seed: of the criterion `"random"`.
        begin: share of the training steps after which pruning begins, in [0, 1]; in
            place of a schedule.
        end: share of the training steps after which `sparsity` is reached, in [0, 1];
            equal to `begin` for all at once.

    Raises:
        ConfigError: if a value is out of its range, or the pattern, the schedule and
            the sparsity contradict each other.

    Example:
        >>> Prune(0.8).to_json()["sparsity"]
        0.8
    """

    sparsity: Annotated[float, _SPARSITY]
    _: KW_ONLY
    scope: str | tuple[str, ...] = "layer"
    criterion: Annotated[str, tuple(CRITERIA)] = "magnitude/rms"
    pattern: str = UNSTRUCTURED
    schedule: Schedule = Polynomial()  # noqa: RUF009 - it is frozen
    include: Patterns = ()
    exclude: Patterns = ()
    ratios: Annotated[tuple[tuple[str, float], ...], ByPattern(_SPARSITY)] = ()
    seed: Annotated[int, Whole(0)] = 0
    begin: InitVar[float | None] = None
    end: InitVar[float | None] = None

    name: ClassVar[str] = "prune"
    trains_on: ClassVar[bool] = True

    def __post_init__(self, begin: float | None, end: float | None) -> None:
        super().__post_init__()
        self._set("scope", _scope(self.scope))
        self._set("pattern", pattern_name(self.pattern))
        self._set("schedule", self._schedule(begin, end))
        self._check_pattern()

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data; `recipe.from_json` reads it back."""
        return super().to_json() | {"ratios": dict(self.ratios)}

    def patterns_by_field(self) -> dict[str, tuple[str, ...]]:
        """Return all regular expressions by the argument that they came in.

        Returns:
            The expressions of `scope`, `include`, `exclude` and `ratios`.
        """
        groups = self.scope if isinstance(self.scope, tuple) else ()
        keys = tuple(key for key, _ in self.ratios)
        return {
            "scope": groups,
            "include": self.include,
            "exclude": self.exclude,
            "ratios": keys,
        }

    def _check_pattern(self) -> None:
        kind, numbers = check_pattern(self.pattern)
        if self.schedule.regrowth == "gradient" and kind != UNSTRUCTURED:
            raise ConfigError(
                "Entries change places one by one on a rigl schedule. Received: "
                f"pattern={self.pattern!r}; expected {UNSTRUCTURED!r}."
            )
        if kind != "n of m":
            return
        count, group = numbers
        share = 1 - count / group
        for sparsity in (self.sparsity, *(ratio for _, ratio in self.ratios)):
            if abs(sparsity - share) > 1e-6:
                raise ConfigError(
                    f"The pattern {self.pattern!r} keeps {count} of every {group}, "
                    f"which is a sparsity of {share:g}. Received: "
                    f"sparsity={sparsity!r}."
                )

    def _schedule(self, begin: float | None, end: float | None) -> Schedule:
        if begin is None and end is None:
            final = final_sparsity(self.schedule)
            if final is not None and abs(final - self.sparsity) > 1e-6:
                raise ConfigError(
                    "The schedule and Prune end at different sparsities. Received: "
                    f"sparsity={self.sparsity!r}, {final!r} in the schedule."
                )
            return as_schedule(self.schedule)
        if self.schedule != Polynomial():
            raise ConfigError(
                "begin and end are in place of a schedule; give them to the schedule. "
                f"Received: begin={begin!r}, end={end!r}, schedule={self.schedule!r}."
            )
        begin = 0.0 if begin is None else begin
        return Polynomial(begin=begin, end=max(begin, 0.5) if end is None else end)


def _scope(scope: Any) -> Any:
    rule = OneOf(SCOPES) if isinstance(scope, str) else PATTERNS
    return rule.check("Prune", "scope", scope)


def pattern_name(pattern: Any) -> str:
    """Return a pattern as text: `"unstructured"`, `"2:4"`, `"4x4"`, `"max 4x4"`.

    Args:
        pattern: such a text, or the lengths of a block, such as `(4, 4)`.

    Raises:
        ConfigError: if it is neither.
    """
    name = pattern
    if not isinstance(pattern, str):
        try:
            name = "x".join(str(int(length)) for length in pattern)
        except (TypeError, ValueError):
            name = ""
    check_pattern(name, pattern)
    return name


def check_pattern(name: str, value: Any = None) -> tuple[str, tuple[int, ...]]:
    """Return the kind of a pattern and its numbers.

    Args:
        name: the pattern as text.
        value: what the caller gave, for the message; None for the text.

    Raises:
        ConfigError: if the text is no pattern.

    Example:
        >>> check_pattern("2:4"), check_pattern("max 4x1")
        (('n of m', (2, 4)), ('max', (4, 1)))
    """
    pattern = _parsed(name)
    if pattern is None:
        raise ConfigError(
            'A pattern of Prune is "unstructured", "2:4" for two that stay of every '
            'four, lengths of a block such as (4, 4) or "4x4", or "max 4x4" for blocks '
            "scored by their largest entry. Received: "
            f"pattern={name if value is None else value!r}."
        )
    return pattern


def _parsed(name: str) -> tuple[str, tuple[int, ...]] | None:
    if name == UNSTRUCTURED:
        return UNSTRUCTURED, ()
    if match := re.fullmatch(r"(\d+):(\d+)", name):
        count, group = map(int, match.groups())
        is_good = 0 < count < group <= _LARGEST_GROUP
        return ("n of m", (count, group)) if is_good else None
    if match := re.fullmatch(r"(max )?(\d+(?:x\d+)*)", name):
        shape = tuple(map(int, match[2].split("x")))
        kind = "max" if match[1] else "mean"
        return (kind, shape) if math.prod(shape) > 1 else None
    return None


__all__ = [
    "Constant",
    "Cosine",
    "Iterative",
    "Polynomial",
    "Prune",
    "RigL",
    "Schedule",
    "Splicing",
]
