"""Plan of static int8 quantization: rounded tensors, and tensors that share a range."""

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np

from kerasmem.compression.quantize.activations import with_zero
from kerasmem.compression.quantize.static.kinds import (
    OpSpec,
    is_identity,
    is_relu,
    kind_of,
    unsupported_call_of,
)
from kerasmem.compression.quantize.static.split_layers import RELU, activation_of
from kerasmem.errors import ConfigError
from kerasmem.graph.calls import Call
from kerasmem.graph.flat_calls import Calls
from kerasmem.graph.layers import Weight, own_graph
from kerasmem.types import Model

_NARROWEST = 255 * float(np.finfo(np.float32).tiny)
"""Width of the narrowest range with a step that is exact in float32."""

Ends = tuple[float, float]
"""Lower and upper end of a range."""

Ranges = Mapping[str, Ends]
"""Pairs of lower and upper end by tensor name."""


@dataclass(frozen=True)
class Int8Call:
    """A call that is computed in int8.

    `inputs` and `output` are tensor numbers. The output follows a fused ReLU.
    """

    kind: OpSpec
    inputs: tuple[int, ...]
    output: int


@dataclass
class StaticPlan:
    """Int8 and float calls of a model.

    Args:
        calls: All calls.
        same: Tensor numbers by the number of an identical tensor.
        steps: Int8 calls by name.
        gone: Names of calls that are fused with others.
        reasons: Reasons of float calls by name.
        shared: Tensor numbers by the number of a tensor with the same range.
        fixed: Fixed ranges by tensor number.
        floats: Numbers of product outputs that stay float, because only float layers
            read them.
    """

    calls: Calls
    same: dict[int, int] = field(default_factory=dict)
    steps: dict[str, Int8Call] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    fixed: dict[int, Ends] = field(default_factory=dict)
    floats: set[int] = field(default_factory=set)

    def number(self, tensor: int) -> int:
        """Return the number of a tensor, or of an identical earlier tensor."""
        return _root(self.same, tensor)

    def ends_in(self, tensor: int) -> bool:
        """Return whether a tensor is an output of the model."""
        return tensor in map(self.number, self.calls.outputs)

    @property
    def coded(self) -> set[str]:
        """Names of rounded tensors."""
        return {name for group in self.groups() for name in group}

    def has_fixed_range(self, tensor: int) -> bool:
        """Return whether a tensor shares its range with a tensor in `fixed`."""
        root = _root(self.shared, tensor)
        return any(_root(self.shared, number) == root for number in self.fixed)

    def ranges(self, known: Ranges) -> Ranges:
        """Return the ranges of rounded tensors, equal where tensors share a range.

        Tensors without a known range are omitted.

        Raises:
            ConfigError: If a range is invalid.
        """
        ranges = {}
        for group, members in self.groups().items():
            certain = [self.fixed[n] for n in members if n in self.fixed]
            decisive = self._decisive(members)
            if not certain and not all(name in known for name in decisive):
                continue
            ends = certain[:1] or [_ends(known, name) for name in decisive]
            low, high = with_zero(min(e[0] for e in ends), max(e[1] for e in ends))
            ranges |= dict.fromkeys(group, (low, max(high, low + _NARROWEST)))
        return ranges

    def needed(self, rounded: Container[str]) -> list[str]:
        """Return the names of tensors whose values determine the `rounded` ranges."""
        return [
            name
            for group, members in self.groups().items()
            if any(each in rounded for each in group)
            and not any(number in self.fixed for number in members)
            for name in self._decisive(members)
        ]

    def groups(self) -> dict[tuple[str, ...], list[int]]:
        """Return the numbers of rounded tensors that share a range, by their names."""
        groups: dict[int, dict[int, None]] = defaultdict(dict)
        for step in self.steps.values():
            for number in (*step.inputs, step.output):
                if number not in self.floats:
                    groups[_root(self.shared, number)][number] = None
        names = self.calls.names
        return {
            tuple(names[n] for n in group): list(group) for group in groups.values()
        }

    def _decisive(self, members: list[int]) -> list[str]:
        makers = {s.output for s in self.steps.values() if s.kind.keeps_scale}
        numbers = sorted(set(members) - makers or set(members))
        return [self.calls.names[number] for number in numbers]


def join(shared: dict[int, int], one: int, two: int) -> None:
    """Make two tensors share a range."""
    one, two = _root(shared, one), _root(shared, two)
    if one != two:
        shared[one] = two


def _root(links: Mapping[int, int], number: int) -> int:
    while number in links:
        number = links[number]
    return number


def _ends(ranges: Ranges, name: str) -> Ends:
    if not is_range(ranges[name]):
        raise ConfigError(
            "Expected a range with a lower and an upper end, both finite. "
            f"Received: ranges[{name!r}]={ranges[name]!r}."
        )
    low, high = map(float, ranges[name])
    return low, high


def is_range(ends: Any) -> bool:
    """Return whether a value is a finite lower and upper end."""
    is_pair = isinstance(ends, tuple | list) and len(ends) == 2
    if not is_pair or not all(isinstance(end, Real) for end in ends):
        return False
    return all(map(math.isfinite, ends)) and ends[0] <= ends[1]


def named_as_in(copy: Any, model: Model, ranges: Ranges) -> Ranges:
    """Return ranges with the input names of a copy.

    Inputs without a name get new names in a copy.
    """
    pairs = zip(own_graph(model).inputs, own_graph(copy).inputs, strict=True)
    names = {old.name: new.name for old, new in pairs}
    return {names.get(name, name): ends for name, ends in ranges.items()}


Stays = Callable[[Any], str | None]
"""Returns why a layer stays float, or None."""

EXCLUDED = "is excluded"


def staying_float(excluded: Iterable[Weight]) -> Stays:
    """Return a function that returns why a layer with excluded weights stays float."""
    layers = {id(weight.block) for weight in excluded}
    return lambda layer: EXCLUDED if id(layer) in layers else None


def make_plan(
    calls: Calls,
    stays: Stays = lambda _: None,
    float_calls: Mapping[str, str] | None = None,
) -> StaticPlan:
    """Return the plan of all calls of a model.

    Layers with a kernel are computed in int8 wherever they occur. Other layers are
    computed in int8 only after such a layer or at the inputs of the model.
    `float_calls` contains reasons for more calls to stay float.
    """
    plan = StaticPlan(calls)
    takers = _takers(plan)
    _join_calls_of_one(plan)
    coded_numbers = {number for number in calls.inputs if calls.is_float(number)}
    for call in calls.calls:
        if call.name in plan.gone:
            continue
        kind = kind_of(call.operation)
        reason = stays(call.layer) or (float_calls or {}).get(call.whole)
        reason = reason or _why_float(plan, call, coded_numbers)
        if kind is None or reason is not None:
            plan.reasons[call.name] = reason or ""
            continue
        inputs = tuple(plan.number(number) for number in call.inputs)
        step = Int8Call(kind, inputs, call.outputs[0])
        step = _with_relu(plan, call, step, takers)
        plan.steps[call.name] = step
        coded_numbers.add(step.output)
        if step.kind.ends is not None:
            plan.fixed[step.output] = step.kind.ends
        if step.kind.keeps_scale:
            for number in step.inputs:
                join(plan.shared, number, step.output)
    return plan


def _takers(plan: StaticPlan) -> dict[int, list[Call]]:
    takers: dict[int, list[Call]] = defaultdict(list)
    for call in plan.calls.calls:
        if is_identity(call.operation) and not call.is_trained:
            plan.same[call.outputs[0]] = call.inputs[0]
            plan.gone.add(call.name)
            continue
        for number in call.inputs:
            takers[plan.number(number)].append(call)
    return takers


def _why_float(plan: StaticPlan, call: Call, coded: set[int]) -> str | None:
    kind = kind_of(call.operation)
    if kind is None:
        return f"{type(call.operation).__name__} has no int8 support"
    if call.is_trained:
        return "is called with training=True"
    numbers = [plan.number(number) for number in call.inputs]
    if not all(map(plan.calls.is_float, numbers)):
        return "has inputs that are not float"
    tensors = [plan.calls.tensors[number] for number in numbers]
    arguments = call.arguments({n: plan.calls.tensors[n] for n in call.inputs})
    reason = unsupported_call_of(call.operation, tensors, arguments)
    if reason is None and not kind.starts_int8 and not coded & set(numbers):
        return "follows layers that stay float"
    if kind.ends is not None and plan.ends_in(call.outputs[0]):
        return "is an output of the model"
    if (
        kind.keeps_scale
        and len(numbers) > 1
        and any(map(plan.has_fixed_range, numbers))
    ):
        return "joins a tensor with a fixed range"
    return reason


def _with_relu(
    plan: StaticPlan, call: Call, step: Int8Call, takers: dict[int, list[Call]]
) -> Int8Call:
    after = takers[step.output]
    has_relu = activation_of(call.operation) in RELU
    if not step.kind.fuses_relu or has_relu or plan.ends_in(step.output):
        return step
    if len(after) != 1 or not is_relu(after[0].operation):
        return step
    plan.gone.add(after[0].name)
    return replace(step, output=after[0].outputs[0])


def _join_calls_of_one(plan: StaticPlan) -> None:
    """Make the outputs of repeated calls of a model or layer share a range."""
    first: dict[tuple[int, str], int] = {}
    for call in plan.calls.calls:
        within = call.name.removeprefix(call.whole)
        for number, tensor in zip(call.outputs, _tensors_of(call), strict=True):
            key = (id(call.layer), within) if within else (id(tensor), "")
            join(plan.shared, number, first.setdefault(key, number))


def _tensors_of(call: Call) -> Sequence[Any]:
    return (call.part_of or call).nodes[-1].outputs[: len(call.outputs)]
