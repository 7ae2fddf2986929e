"""What of a model is computed with codes, and which tensors share their codes."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from kerasmem.compression.quantize.activations import with_zero
from kerasmem.compression.quantize.static.base import RELU, Codes
from kerasmem.compression.quantize.static.calls import activation_of
from kerasmem.compression.quantize.static.kinds import (
    OpSpec,
    is_identity,
    is_relu,
    kind_of,
    unsupported_call_of,
)
from kerasmem.errors import ConfigError
from kerasmem.graph.calls import Call
from kerasmem.graph.flat_calls import Calls
from kerasmem.graph.layers import Weight, own_graph

Ranges = Mapping[str, tuple[float, float]]
"""Pairs of ends by the name of a tensor."""


@dataclass(frozen=True)
class Step:
    """One call that is computed with codes.

    Args:
        kind: how.
        inputs: numbers of the tensors that go in, whose codes count.
        output: number of the one that comes out, after the activation within it.
        activation: None, `"relu"` or `"relu6"`.
        keeps_mask: whether a mask goes through it.
    """

    kind: OpSpec
    inputs: tuple[int, ...]
    output: int
    activation: str | None
    keeps_mask: bool


@dataclass
class Plan:
    """What becomes of every call.

    Args:
        calls: all of them.
        same: numbers of tensors by those of their equals.
        steps: the calls that are computed with codes, by name.
        gone: names of those that others do.
        reasons: why the others stay float, by name.
        shared: numbers of tensors by those of tensors that have the same codes.
        fixed: codes of tensors that can have no others, by their numbers.
        floats: numbers of what products give as floats, for only floats go on with it.
    """

    calls: Calls
    same: dict[int, int] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    fixed: dict[int, Codes] = field(default_factory=dict)
    floats: set[int] = field(default_factory=set)

    def number(self, tensor: int) -> int:
        """Return the number of a tensor, or of the one that it is."""
        return _root(self.same, tensor)

    def ends_in(self, tensor: int) -> bool:
        """Return True for a tensor that the model returns."""
        return tensor in map(self.number, self.calls.outputs)

    @property
    def coded(self) -> set[str]:
        """The names of the tensors that have codes."""
        every = (n for s in self.steps.values() for n in (*s.inputs, s.output))
        return {self.calls.names[number] for number in set(every) - self.floats}

    def has_fixed_codes(self, tensor: int) -> bool:
        """Return True for a tensor that shares its codes with one of `fixed`."""
        root = _root(self.shared, tensor)
        return any(_root(self.shared, number) == root for number in self.fixed)

    def codes(self, ranges: Ranges) -> dict[int, Codes]:
        """Return the codes of every tensor that has some, by its number.

        Args:
            ranges: ends of what each tensor takes, by its name.

        Raises:
            ConfigError: if one is missing, or is none.
        """
        found = {}
        for members in self._groups():
            certain = [self.fixed[n] for n in members if n in self.fixed]
            if certain:
                found |= dict.fromkeys(members, certain[0])
                continue
            ends = [_ends(ranges, self.calls.names[n]) for n in self._decisive(members)]
            low, high = with_zero(min(e[0] for e in ends), max(e[1] for e in ends))
            found |= dict.fromkeys(members, Codes.of_range(low, high))
        return found

    def needed(self) -> list[str]:
        """Return the names of the tensors whose ranges `codes` takes."""
        return [
            self.calls.names[number]
            for members in self._groups()
            if not any(number in self.fixed for number in members)
            for number in self._decisive(members)
        ]

    def _groups(self) -> list[list[int]]:
        """Return the numbers of tensors that have codes, those that share them."""
        groups = defaultdict(list)
        for step in self.steps.values():
            for number in (*step.inputs, step.output):
                if number not in self.floats:
                    groups[_root(self.shared, number)].append(number)
        return list(groups.values())

    def _decisive(self, members: list[int]) -> list[int]:
        """Return those whose ranges the others have, in order."""
        makers = {s.output for s in self.steps.values() if s.kind.keeps_scale}
        return sorted(set(members) - makers or set(members))


def join(shared: dict[int, int], one: int, two: int) -> None:
    """Make two tensors share their codes."""
    one, two = _root(shared, one), _root(shared, two)
    if one != two:
        shared[one] = two


def _root(links: Mapping[int, int], number: int) -> int:
    while number in links:
        number = links[number]
    return number


def _ends(ranges: Ranges, name: str) -> tuple[float, float]:
    if name not in ranges:
        raise ConfigError(
            "Every activation in int8 has a range. Expected: one of "
            f"{name!r}. Received: ranges of {', '.join(map(repr, list(ranges)[:5]))}..."
        )
    if not is_range(ranges[name]):
        raise ConfigError(
            "A range has a lower and an upper end, both finite. "
            f"Received: ranges[{name!r}]={ranges[name]!r}."
        )
    low, high = map(float, ranges[name])
    return low, high


def is_range(ends: Any) -> bool:
    """Return whether something is a lower and an upper end, both finite."""
    is_pair = isinstance(ends, tuple | list) and len(ends) == 2
    if not is_pair or not all(isinstance(end, Real) for end in ends):
        return False
    return all(map(math.isfinite, ends)) and ends[0] <= ends[1]


def named_as_in(copy: Any, model: Any, ranges: Ranges) -> Ranges:
    """Return ranges with those of inputs under the names that a copy has for them.

    An input that was given no name has another one in a copy.
    """
    pairs = zip(own_graph(model).inputs, own_graph(copy).inputs, strict=True)
    names = {old.name: new.name for old, new in pairs}
    return {names.get(name, name): ends for name, ends in ranges.items()}


Stays = Callable[[Any], str | None]
"""Returns why a layer has to stay float, None if it need not."""

EXCLUDED = "is excluded"


def staying_float(excluded: Iterable[Weight]) -> Stays:
    """Return what tells of the layers that have these weights."""
    layers = {id(weight.block) for weight in excluded}
    return lambda layer: EXCLUDED if id(layer) in layers else None


def make_plan(
    calls: Calls,
    stays: Stays = lambda _: None,
    float_calls: Mapping[str, str] | None = None,
) -> Plan:
    """Return what of a model can be computed with codes.

    A layer with a kernel can wherever it stands; others only behind one, or at the
    beginning: codes are not made for their sake.

    Args:
        calls: those of the model.
        stays: tells of layers that are to stay float.
        float_calls: why more calls are to, by their names in the model.
    """
    plan = Plan(calls)
    takers = _takers(plan)
    coded = {number for number in calls.inputs if calls.is_float(number)}
    for call in calls.calls:
        if call.name in plan.gone:
            continue
        found = kind_of(call.operation)
        reason = stays(call.layer) or (float_calls or {}).get(call.whole)
        reason = reason or _why_float(plan, call, coded)
        if found is None or reason is not None:
            plan.reasons[call.name] = reason or ""
            continue
        step = _with_relu(plan, _step(plan, call, found), takers)
        plan.steps[call.name] = step
        coded.add(step.output)
        if step.kind.codes is not None:
            plan.fixed[step.output] = step.kind.codes
        if step.kind.keeps_scale:
            for number in step.inputs:
                join(plan.shared, number, step.output)
    return plan


def _takers(plan: Plan) -> dict[int, list[Call]]:
    """Return the calls that take each tensor, and note those that hand it on."""
    takers: dict[int, list[Call]] = defaultdict(list)
    for call in plan.calls.calls:
        if is_identity(call.operation) and not call.is_trained:
            plan.same[call.outputs[0]] = call.inputs[0]
            plan.gone.add(call.name)
            continue
        for number in call.inputs:
            takers[plan.number(number)].append(call)
    return takers


def _why_float(plan: Plan, call: Call, coded: set[int]) -> str | None:
    found = kind_of(call.operation)
    if found is None:
        return f"{type(call.operation).__name__} has no form in int8"
    if call.is_trained:
        return "is called with training=True"
    numbers = [plan.number(number) for number in call.inputs]
    if not all(map(plan.calls.is_float, numbers)):
        return "takes what are no floats"
    tensors = [plan.calls.tensors[number] for number in numbers]
    arguments = call.arguments({n: plan.calls.tensors[n] for n in call.inputs})
    reason = unsupported_call_of(call.operation, tensors, arguments)
    if reason is None and not found.starts_int8 and not coded & set(numbers):
        return "stands behind layers that stay float"
    if found.codes is not None and plan.ends_in(call.outputs[0]):
        return "is the end of the model"
    if (
        found.keeps_scale
        and len(numbers) > 1
        and any(map(plan.has_fixed_codes, numbers))
    ):
        return "joins what can have only codes of its own"
    return reason


def _step(plan: Plan, call: Call, kind: OpSpec) -> Step:
    inputs = tuple(plan.number(number) for number in call.inputs)
    activation = activation_of(call.operation)
    within = activation if activation in RELU else None
    return Step(kind, inputs, call.outputs[0], within, _keeps_mask(call))


def _with_relu(plan: Plan, step: Step, takers: dict[int, list[Call]]) -> Step:
    """Return the step with the ReLU that is all that takes its output."""
    after = takers[step.output]
    if not step.kind.fuses_relu or step.activation or plan.ends_in(step.output):
        return step
    if len(after) != 1 or not is_relu(after[0].operation):
        return step
    plan.gone.add(after[0].name)
    return replace(
        step,
        output=after[0].outputs[0],
        activation=activation_of(after[0].operation),
        keeps_mask=step.keeps_mask and _keeps_mask(after[0]),
    )


def _keeps_mask(call: Call) -> bool:
    """Return whether Keras hands a mask on; operations that are no layers never do."""
    return getattr(call.operation, "supports_masking", False)
