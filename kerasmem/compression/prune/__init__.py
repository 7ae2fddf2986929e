"""Configuration of weight pruning and its schedules."""

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
"""Maps each criterion to the evidence it needs, or None for the weights only."""

UNSTRUCTURED = "unstructured"
_LARGEST_GROUP = 1 << 16
_SPARSITY = Real("the fraction of weights to set to zero,", least=0, below=1)


@dataclass(frozen=True)
class Prune(Technique):
    """Weight pruning: sets the least important weights to zero.

    Prunes kernels and embedding tables. Depthwise kernels, the output layer and other
    float weights are pruned only if `include` or `ratios` matches them. `km.compress`
    prunes in one step. `km.callbacks.Pruning` follows the schedule.

    Sources: Han, Pool, Tran and Dally, "Learning both Weights and Connections for
    Efficient Neural Networks", 2015 (magnitude); Zhu and Gupta, "To prune, or not to
    prune", 2017 (the schedule); Molchanov, Mallya, Tyree, Frosio and Kautz, "Importance
    Estimation for Neural Network Pruning", 2019 (Taylor); Sanh, Wolf and Rush,
    "Movement Pruning", 2020; Sun, Liu, Bair and Kolter, "A Simple and Effective Pruning
    Approach for Large Language Models" (Wanda), 2023; Mishra et al., "Accelerating
    Sparse Deep Neural Networks", 2021 (2:4).

    Args:
        sparsity: Float in [0, 1). Fraction of entries to set to zero in kernels and
            embedding tables. The output layer and biases are only pruned if included.
        scope: Weights that are ranked together: `"layer"` (each weight array
            separately); `"global"` (all weights); `"erdos_renyi"` (as `"layer"`, but
            arrays with few inputs and outputs keep more); `"erdos_renyi_kernel"` (also
            counts the height and width of a convolution). In Python and recipes, also
            a list of regular expressions: the weights that match one expression are
            ranked together. Defaults to `"layer"`.
        criterion: Importance score of a weight: `"magnitude"` (absolute value);
            `"magnitude/rms"` (divided by the root mean square of the array);
            `"taylor"` (square of gradient times weight); `"movement"` (negative
            gradient times weight); `"wanda"` (absolute value times the norm of its
            input); `"random"` (baseline). `"taylor"` and `"movement"` need labeled
            `data`, and `"wanda"` needs `data`. Defaults to `"magnitude/rms"`.
        pattern: `"unstructured"`, or `"2:4"` to keep two of every four consecutive
            weights along the input axis (sparsity 0.5). A size prunes blocks, ranked
            by mean, or by maximum with `"max 4x4"`: `"8x1"` is 8 inputs by 1 output.
            Python also accepts `(4, 4)`. Defaults to `"unstructured"`.
        schedule: Sparsity schedule during training, from `kerasmem.compression.prune`
            or tfmot. Defaults to a cubic rise from `begin` to `end`.
        include: Regular expressions of weight paths or layer class names. Additional
            weights to prune, such as those of the output layer.
        exclude: Regular expressions of weight paths or layer class names. Matching
            weights are not pruned.
        ratios: Mapping from regular expression to sparsity. Overrides `sparsity` for
            matching weights; the first match counts.
        seed: Integer, at least 0. Random seed of the criterion `"random"`; the seed of
            `km.compress` (`--seed`) has no effect on it. Defaults to 0.
        begin: Float in [0, 1]. Fraction of the training steps at which pruning begins.
            Cannot be combined with `schedule`. Defaults to 0.
        end: Float in [0, 1]. Fraction of the training steps at which `sparsity` is
            reached. If equal to `begin`, pruning is one-shot. Defaults to 0.5, or
            `begin` if later.

    Raises:
        ConfigError: If a value is out of range, or pattern, schedule and sparsity
            contradict each other.

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
        """Returns the configuration as plain data, for `recipe.from_json`."""
        return super().to_json() | {"ratios": dict(self.ratios)}

    def patterns_by_field(self) -> dict[str, tuple[str, ...]]:
        """Returns the regular expressions of each argument.

        Returns:
            Expressions of `scope`, `include`, `exclude` and `ratios`, by argument.
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
                "A rigl schedule needs an unstructured pattern. Received: "
                f"pattern={self.pattern!r}; expected {UNSTRUCTURED!r}."
            )
        if kind != "n of m":
            return
        count, group = numbers
        share = 1 - count / group
        for sparsity in (self.sparsity, *(ratio for _, ratio in self.ratios)):
            if abs(sparsity - share) > 1e-6:
                raise ConfigError(
                    f"The pattern {self.pattern!r} keeps {count} of every {group} "
                    f"entries, a sparsity of {share:g}. Received: "
                    f"sparsity={sparsity!r}."
                )

    def _schedule(self, begin: float | None, end: float | None) -> Schedule:
        if begin is None and end is None:
            final = final_sparsity(self.schedule)
            if final is not None and abs(final - self.sparsity) > 1e-6:
                raise ConfigError(
                    "`sparsity` differs from the final sparsity of the schedule. "
                    f"Received: sparsity={self.sparsity!r}, {final!r} in the schedule."
                )
            return as_schedule(self.schedule)
        if self.schedule != Polynomial():
            raise ConfigError(
                "`begin` and `end` cannot be combined with `schedule`. Next: pass "
                "`begin` and `end` to the schedule. "
                f"Received: begin={begin!r}, end={end!r}, schedule={self.schedule!r}."
            )
        begin = 0.0 if begin is None else begin
        return Polynomial(begin=begin, end=max(begin, 0.5) if end is None else end)


def _scope(scope: Any) -> Any:
    rule = OneOf(SCOPES) if isinstance(scope, str) else PATTERNS
    return rule.check("Prune", "scope", scope)


def pattern_name(pattern: Any) -> str:
    """Returns a pattern as text: `"unstructured"`, `"2:4"`, `"4x4"` or `"max 4x4"`."""
    name = pattern
    if not isinstance(pattern, str):
        try:
            name = "x".join(str(int(length)) for length in pattern)
        except (TypeError, ValueError):
            name = ""
    check_pattern(name, pattern)
    return name


def check_pattern(name: str, value: Any = None) -> tuple[str, tuple[int, ...]]:
    """Returns the kind and the numbers of a pattern.

    `value` is the original value, for the message. Raises `ConfigError` if the pattern
    is invalid.

    Example:
        >>> check_pattern("2:4"), check_pattern("max 4x1")
        (('n of m', (2, 4)), ('max', (4, 1)))
    """
    pattern = _parsed(name)
    if pattern is None:
        raise ConfigError(
            'Invalid pattern of Prune. Expected "unstructured", "2:4", a block shape '
            'such as (4, 4) or "4x4", or "max 4x4". "2:4" keeps two of every four '
            'entries; "max" scores blocks by their largest entry. Received: '
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
