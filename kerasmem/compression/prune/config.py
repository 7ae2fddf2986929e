"""The choice of which weights become zero, and when."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any, ClassVar

from kerasmem.compression.prune.allocation import ERDOS_RENYI, ERDOS_RENYI_KERNEL
from kerasmem.compression.prune.apply import prune_weights
from kerasmem.compression.prune.masks import zeros_kept
from kerasmem.compression.prune.patterns import (
    UNSTRUCTURED,
    NOfM,
    parse_pattern,
    pattern_name,
)
from kerasmem.compression.prune.plan import make_plan
from kerasmem.compression.prune.schedule_forms import as_schedule, final_sparsity
from kerasmem.compression.prune.schedules import Polynomial, Schedule, is_number
from kerasmem.compression.prune.scores import CRITERIA
from kerasmem.compression.regular_expressions import regular_expressions
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError, did_you_mean
from kerasmem.records import WeightChange

SCOPES = ("layer", "global", ERDOS_RENYI, ERDOS_RENYI_KERNEL)


@dataclass(frozen=True)
class Prune(Technique):
    """Set the weights that matter least to zero.

    Pruned are kernels and embedding tables; depthwise kernels and the output layer only
    if `include` or `ratios` names them, and any other float weight likewise. In
    `km.compress` all are set at once. In `km.callbacks.Pruning` the sparsity rises on
    the schedule.

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
        ConfigError: if a value is out of its range.

    Example:
        >>> Prune(0.8).to_json()["sparsity"]
        0.8
    """

    sparsity: float
    _: KW_ONLY
    scope: str | tuple[str, ...] = "layer"
    criterion: str = "magnitude/rms"
    pattern: str = UNSTRUCTURED
    schedule: Schedule = Polynomial()  # noqa: RUF009 - it is frozen
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    ratios: tuple[tuple[str, float], ...] = ()
    seed: int = 0
    begin: InitVar[float | None] = None
    end: InitVar[float | None] = None

    name: ClassVar[str] = "prune"
    trains_on: ClassVar[bool] = True

    def __post_init__(self, begin: float | None, end: float | None) -> None:
        _check_sparsity("sparsity", self.sparsity)
        ratios = (
            self.ratios.items() if isinstance(self.ratios, Mapping) else self.ratios
        )
        self._set("ratios", tuple(map(_pair, ratios)))
        for key, ratio in self.ratios:
            _check_sparsity(f"ratios[{key!r}]", ratio)
        self._set("scope", _scope(self.scope))
        _check_criterion(self.criterion)
        self._set("pattern", pattern_name(self.pattern))
        self._set("schedule", self._schedule(begin, end))
        self._check_pattern()
        for name in ("include", "exclude"):
            self._set(name, regular_expressions("Prune", name, getattr(self, name)))
        regular_expressions("Prune", "ratios", [key for key, _ in self.ratios])

    def apply(self, model: Any, data: Any = None) -> list[WeightChange]:
        """Set the weights of `model` to zero that matter least, in place and at once.

        Args:
            model: a built model.
            data: samples, for a criterion that takes them.
        """
        return prune_weights(model, self, data)

    def preserved(self, model: Any, trainer: Any) -> AbstractContextManager[None]:
        """Return a scope in which the zeros of `model` stay zero while it trains."""
        return zeros_kept(trainer, make_plan(model, self).variables)

    def patterns_by_field(self) -> dict[str, tuple[str, ...]]:
        """Return all regular expressions by the argument that they came in."""
        groups = self.scope if isinstance(self.scope, tuple) else ()
        keys = tuple(key for key, _ in self.ratios)
        return {
            "scope": groups,
            "include": self.include,
            "exclude": self.exclude,
            "ratios": keys,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data; `techniques.from_json` reads it back."""
        nested = {"schedule": self.schedule.to_json(), "ratios": dict(self.ratios)}
        return super().to_json() | nested

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_pattern(self) -> None:
        pattern = parse_pattern(self.pattern)
        if self.schedule.regrowth == "gradient" and self.pattern != UNSTRUCTURED:
            raise ConfigError(
                "Entries change places one by one on a rigl schedule. Received: "
                f"pattern={self.pattern!r}; expected {UNSTRUCTURED!r}."
            )
        if not isinstance(pattern, NOfM):
            return
        for sparsity in (self.sparsity, *(ratio for _, ratio in self.ratios)):
            if abs(sparsity - pattern.sparsity) > 1e-6:
                raise ConfigError(
                    f"The pattern {self.pattern!r} keeps {pattern.kept} of every "
                    f"{pattern.group}, which is a sparsity of {pattern.sparsity:g}. "
                    f"Received: sparsity={sparsity!r}."
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


def _check_sparsity(name: str, value: Any) -> None:
    if not is_number(value) or not 0 <= value < 1:
        raise ConfigError(
            "The sparsity of Prune is the share of weights that becomes zero, at "
            f"least 0 and less than 1. Received: {name}={value!r}."
        )


def _pair(given: Any) -> tuple[str, Any]:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        raise ConfigError(
            "The ratios of Prune are pairs of a regular expression and a sparsity. "
            f"Received: {given!r}."
        )
    return str(given[0]), given[1]


def _scope(scope: Any) -> Any:
    if not isinstance(scope, str):
        return regular_expressions("Prune", "scope", scope)
    if scope not in SCOPES:
        raise ConfigError(
            f"The scope of Prune must be one of {', '.join(SCOPES)}, or a list of "
            f"regular expressions. Received: scope={scope!r}."
            f"{did_you_mean(scope, SCOPES)}"
        )
    return scope


def _check_criterion(criterion: Any) -> None:
    if criterion not in CRITERIA:
        raise ConfigError(
            f"The criterion of Prune is one of {', '.join(CRITERIA)}. "
            f"Received: criterion={criterion!r}.{did_you_mean(criterion, CRITERIA)}"
        )
