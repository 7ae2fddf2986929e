"""Tensors of a forward pass rounded to ranges that training keeps up to date."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np

from kerasmem.backends import shadow
from kerasmem.compression.quantize.activations.search import with_zero
from kerasmem.compression.quantize.aware.dense import round_before_activation
from kerasmem.compression.quantize.aware.passed_state import PassedState
from kerasmem.compression.quantize.aware.places import (
    INSIDE,
    LINEAR,
    SEPARABLE,
    Place,
    has_linear,
    places,
)
from kerasmem.compression.quantize.aware.quantizers import Ends, FakeQuantizer
from kerasmem.compression.quantize.aware.separable import round_within
from kerasmem.compression.quantize.aware.tensor_steps import TensorSteps
from kerasmem.compression.quantize.aware.trained_beside import TrainedBeside
from kerasmem.compression.quantize.given_ranges import Ranges
from kerasmem.compression.quantize.static.known_ranges import check_known
from kerasmem.compression.quantize.static.planning import Stays
from kerasmem.graph.layers import sublayers
from kerasmem.graph.masks import mask_of, with_mask
from kerasmem.graph.nodes import listed_graph, nodes_in_order


class RoundedActivations:
    """The ranges of a model's tensors, looked for and applied in its forward pass.

    A range begins as that of the first batch. In inference it stays as it is.

    Args:
        model: a built model with a graph.
        quantizer: how ranges follow what is seen.
        begin: ranges to begin with; those of tensors that are not rounded are ignored.
        beside: trains the width of each range; None for what the quantizer finds.
        static: only what `Quantize("int8-static")` rounds is rounded, where this tells
            of layers that stay float; None for all.

    Raises:
        ModelError: if one is of no tensor of the model, or nothing is rounded.
    """

    def __init__(
        self,
        model: Any,
        quantizer: FakeQuantizer,
        begin: Ranges,
        beside: TrainedBeside | None = None,
        static: Stays | None = None,
    ) -> None:
        self._quantizer = quantizer
        self._places = places(model, static)
        self._rows = {at: row for row, at in enumerate(self._places)}
        check_known(model, begin, {place.tensor for place in self._places.values()})
        unknown = (np.nan, np.nan)
        ends = [begin.get(place.tensor, unknown) for place in self._places.values()]
        self._steps = beside and TensorSteps(self._places, beside)
        self._graph = listed_graph(model)
        self._pass = _Pass()
        with ExitStack() as undo:
            self._state = PassedState(model, np.array(ends, "float32"), "ranges")
            undo.callback(self._state.release)
            for graph in _graphs(self._graph):
                # Private: nothing public shows the calls of a graph one by one.
                run = self._running(graph)
                undo.callback(shadow(graph, "_run_through_graph", run))
            for layer in sublayers(model):
                if type(layer) in SEPARABLE:
                    within = self._inside(INSIDE)
                    undo.callback(round_within(layer, within, self._is_passing))
                if has_linear(layer):
                    within = self._inside(LINEAR)
                    how = layer, within, self._is_passing
                    undo.callback(round_before_activation(*how))
            self._undo = undo.pop_all()

    @contextmanager
    def applied(self, *, training: bool) -> Iterator[None]:
        """Return a scope in which the model's tensors are rounded.

        Args:
            training: whether the ranges follow what is seen.
        """
        ops = keras.ops
        ends = ops.convert_to_tensor(self._state.variable.value)
        now = self._pass
        now.ends = [(ends[i, 0], ends[i, 1]) for i in range(len(self._places))]
        now.training, now.prefix = training, ""
        try:
            yield
            if training:
                seen = ops.stack(list(map(ops.stack, now.ends)))
                if now.is_empty is not None:
                    seen = ops.where(now.is_empty, ends, seen)
                self._state.variable.assign(seen)
        finally:
            now.ends = now.is_empty = None

    def read(self) -> dict[str, tuple[float, float]]:
        """Return the ranges found so far, with zero in each; between epochs only.

        That of a BatchNormalization stands under the name of its product as well: what
        this gives once it is folded.
        """
        ends = self._state.read().tolist()
        if self._steps is not None:
            ends = self._steps.scaled(ends)
        found: dict[str, tuple[float, float]] = {}
        for place, (low, high) in zip(self._places.values(), ends, strict=True):
            if not np.isnan(low):
                found[place.tensor] = with_zero(low, high)
                if place.folded is not None:
                    found[place.folded] = found[place.tensor]
        return found

    def release(self) -> None:
        """Let the model run as ever; a second call is a no-op."""
        self._undo.close()

    def _running(self, graph: Any) -> Callable[..., Any]:
        """Return what stands for a graph's way through its calls."""

        def run(original: Any, inputs: Any, operation_fn: Any, **options: Any) -> Any:
            if self._pass.ends is None:
                return original(inputs, operation_fn, **options)
            if graph is self._graph:
                names = [tensor.name for tensor in graph.inputs]
                inputs = keras.tree.flatten(inputs)
                self._pass.is_empty = _is_empty(inputs)
                inputs = self._rounded(names, inputs)
            name_of = _namer(self._pass.prefix)
            return original(
                inputs,
                lambda operation: self._calling(
                    operation_fn(operation), name_of(operation)
                ),
                **options,
            )

        return run

    def _calling(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a call of an operation whose outputs are rounded."""

        def rounded(*args: Any, **kwargs: Any) -> Any:
            before, self._pass.prefix = self._pass.prefix, f"{name}/"
            try:
                outputs = call(*args, **kwargs)
            finally:
                self._pass.prefix = before
            flat = keras.tree.flatten(outputs)
            names = [f"{name}.{i}" if i else name for i in range(len(flat))]
            if self._rows.keys().isdisjoint(names):
                return outputs
            return keras.tree.pack_sequence_as(outputs, self._rounded(names, flat))

        return rounded

    def _is_passing(self) -> bool:
        return self._pass.ends is not None

    def _inside(self, name: str) -> Callable[[Any], Any]:
        """Return what rounds a tensor within the layer that is called."""
        return lambda x: self._rounded([f"{self._pass.prefix}{name}"], [x])[0]

    def _rounded(self, names: list[str], tensors: list[Any]) -> list[Any]:
        return [
            self._rounded_at(name, x) if name in self._rows and x is not None else x
            for name, x in zip(names, tensors, strict=True)
        ]

    def _rounded_at(self, at: str, x: Any) -> Any:
        every = self._pass.ends
        if every is None:
            return x
        ends = self._now(every[self._rows[at]], x, self._places[at])
        every[self._rows[at]] = ends
        if self._steps is None:
            rounded = self._quantizer.rounded(x, ends)
        else:
            rounded = self._steps.rounded(self._rows[at], x, ends)
        mask = mask_of(x)
        return rounded if mask is None else with_mask(rounded, mask)

    def _now(self, ends: Ends, x: Any, place: Place) -> Ends:
        """Return the range of a tensor that was just made."""
        ops = keras.ops
        seen = self._quantizer.seen(x, never_negative=place.never_negative)
        follow = self._quantizer.updated(ends, seen) if self._pass.training else ends
        is_first = ops.isnan(ends[0])
        low, high = (
            ops.where(is_first, new, old) for new, old in zip(seen, follow, strict=True)
        )
        return low, high


class _Pass(threading.local):
    """Where a forward pass is; replicas of a model run theirs in their own threads.

    Args:
        ends: the ranges as they are by now, None outside of a pass.
        training: whether they follow what is seen.
        prefix: what the names of the calls begin with.
        is_empty: a tensor, whether there are no samples at all, as a replica gets them
            of a small batch; None where it is known that there are some.
    """

    ends: list[Ends] | None = None
    is_empty: Any = None
    training = False
    prefix = ""


def _is_empty(inputs: list[Any]) -> Any:
    """Return whether inputs hold no sample, None where it is known that they do."""
    first = next((x for x in inputs if x is not None), None)
    if first is None or first.shape[0]:
        return None
    return keras.ops.equal(keras.ops.shape(first)[0], 0)


def _graphs(graph: Any) -> list[Any]:
    """Return a graph and those of the models within it, each once."""
    found = {id(graph): graph}
    for node in nodes_in_order(graph):
        inner = listed_graph(node.operation)
        if inner is not None:
            found.update((id(each), each) for each in _graphs(inner))
    return list(found.values())


def _namer(prefix: str) -> Callable[[Any], str]:
    """Return what names the calls of one run of a graph, asked in their order."""
    calls: Counter[str] = Counter()

    def name(operation: Any) -> str:
        own = f"{prefix}{operation.name}"
        number, calls[own] = calls[own], calls[own] + 1
        return f"{own}:{number}" if number else own

    return name
