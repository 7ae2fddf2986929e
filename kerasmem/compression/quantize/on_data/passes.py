"""Runs of a model and its copy on the same samples, part by part.

The activations after a part are kept if they fit in memory, so that earlier parts do
not run again. A model without a graph always runs from the start.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.backends import current
from kerasmem.backends.patching import LayerCall, observing
from kerasmem.files.data import input_batches, sample_inputs
from kerasmem.files.data.check import flat_samples
from kerasmem.files.data.forms import sample_count
from kerasmem.graph.activations import peak_activation_bytes
from kerasmem.graph.calls import in_inference
from kerasmem.graph.flat_calls import flatten
from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.graph.layers import own_graph, sublayers
from kerasmem.graph.values import nbytes
from kerasmem.types import Dataset, Model, Tensor

_SAMPLES, _BATCH_SIZE = 512, 16

_HELD_BYTES = 1 << 28
"""Maximum bytes of activations to keep per model."""

_BATCH_BYTES = 1 << 26
"""Maximum bytes of layer outputs per batch."""

_TURNS = 8
"""Maximum number of runs if no activations can be kept."""

Values = dict[int, Any]
"""Tensors by number."""

See = Callable[[int, Any, Any], None]
"""Function of a layer number and its inputs in the model and in the copy."""


@dataclass(frozen=True)
class _LayerGroup:
    """Numbers of layers to process together, up to the call `end`.

    `is_held` is true if the activations after `end` are kept.
    """

    layers: tuple[int, ...]
    end: int
    is_held: bool


class Passes:
    """A model and its copy on the same samples.

    Args:
        models: Model and copy, or the same model twice to change layers separately.
        layers: Pairs of a layer in the model and in the copy.
        data: Samples in any form listed in `kerasmem.files.data`. The first 512 are
            used.
    """

    def __init__(
        self, models: tuple[Any, Any], layers: Sequence[tuple[Any, Any]], data: Dataset
    ) -> None:
        self._layers, self._data = layers, data
        size = batch_within(models[1], data, _BATCH_SIZE)
        self._copy = Pass(models[1], data, size)
        self._is_one = models[0] is models[1]
        self._exact = self._copy if self._is_one else Pass(models[0], data, size)

    def turns(self, see: See) -> Iterator[tuple[int, ...]]:
        """Yield groups of layer numbers after `see` has received all their inputs.

        The caller may change the weights of yielded layers in the copy. Later layers
        then receive the new outputs. Layers that no call reaches are omitted.
        """
        for part in self._plan():
            self._run(part, see)
            yield part.layers
            if part.is_held:
                with current().inference():
                    self._copy.go_on(part.end + 1)

    def _plan(self) -> list[_LayerGroup]:
        if not self._layers:
            return []
        first, last, sizes = self._reached()
        plan, numbers = [], list[int]()
        order, most = list(last), -(-len(last) // _TURNS)
        for place, number in enumerate(order):
            numbers.append(number)
            end, behind = last[number], order[place + 1 :]
            # A layer that is called again later may have new weights by then.
            is_cut = all(first[n] > end for n in behind)
            is_held = is_cut and bool(behind) and sizes[end] <= _HELD_BYTES
            if is_held or len(numbers) >= most or not behind:
                plan.append(_LayerGroup(tuple(numbers), end, is_held))
                numbers = []
        return plan

    def _reached(self) -> tuple[dict[int, int], dict[int, int], list[float]]:
        """Run one batch. Return first and last call of layers, and bytes per call."""
        numbers = {id(before): n for n, (before, _) in enumerate(self._layers)}
        first, last, sizes = dict[int, int](), dict[int, int](), list[float]()

        def see(call: LayerCall) -> None:
            number = numbers[id(call.layer)]
            first.setdefault(number, len(sizes))
            last.pop(number, None)  # keep `last` sorted by call
            last[number] = len(sizes)

        layers, exact = [before for before, _ in self._layers], self._exact
        batch = next(exact.batches())
        samples = len(keras.tree.flatten(batch)[0])
        times = min(sample_count(self._data) or _SAMPLES, _SAMPLES) / samples
        with current().inference(), observing(layers, inputs=see):
            for values in exact.steps(batch, exact.last_of(layers)):
                sizes.append(times * sum(map(nbytes, values.values())))
        return first, last, sizes

    def _run(self, part: _LayerGroup, see: See) -> None:
        exact, copy, is_one = self._exact, self._copy, self._is_one
        is_held = part.is_held and not is_one  # one model runs again after changes
        pairs = [self._layers[n] for n in part.layers]
        numbers = {id(x): n for n in part.layers for x in self._layers[n]}
        waiting = {n: deque[Any]() for n in part.layers}
        ends = _End(stops=not is_held), _End(stops=True)

        def of_exact(call: LayerCall) -> None:
            number = numbers[id(call.layer)]
            if is_one:
                see(number, call.x, call.x)
            else:
                waiting[number].append(call.x)
            ends[0].count()

        def of_copy(call: LayerCall) -> None:
            number = numbers[id(call.layer)]
            see(number, waiting[number].popleft(), call.x)
            ends[1].count()

        def shown() -> Iterator[Values]:
            for before, after in zip(exact.batches(), copy.batches(), strict=True):
                with observing([layer for layer, _ in pairs], inputs=of_exact):
                    yield ends[0].run(exact.to(part.end), before)
                if not is_one:
                    with observing([layer for _, layer in pairs], inputs=of_copy):
                        ends[1].run(copy.to(part.end), after)

        with current().inference():
            if is_held:
                exact.hold(shown(), part.end + 1)
            else:
                deque(shown(), maxlen=0)


class Pass:
    """Calls of one model, starting from the kept activations."""

    def __init__(self, model: Model, data: Dataset, batch_size: int) -> None:
        self._model, self._data, self._batch_size = model, data, batch_size
        self._calls = flatten(model) if _takes_numbers(model, data) else None
        calls = self._calls.calls if self._calls else ()
        self._uses = {x: n for n, call in enumerate(calls) for x in call.inputs}
        if self._calls:  # outputs are never freed
            self._uses |= dict.fromkeys(self._calls.outputs, len(calls))
        self._held: list[Values] | None = None
        self.begin = 0

    def last_of(self, layers: Sequence[Any]) -> int:
        """Return the number of the last call that may run any of the layers."""
        if self._calls is None:
            return 0
        layer_ids = set(map(id, layers))
        return max(
            number
            for number, call in enumerate(self._calls.calls)
            if isinstance(call.operation, keras.layers.Layer)
            and any(id(layer) in layer_ids for layer in sublayers(call.operation))
        )

    def batches(self) -> Iterator[Values]:
        """Yield the kept values of each batch, or the samples."""
        if self._held is not None:
            yield from self._held
            return
        for x in input_batches(self._data, _SAMPLES, self._batch_size):
            yield {0: x} if self._calls is None else self._numbered(self._calls, x)

    def _numbered(self, calls: Any, x: Tensor) -> Values:
        arrays = flat_samples(self._model, (x,), _SAMPLES)
        tensors = map(keras.ops.convert_to_tensor, arrays)
        return dict(zip(calls.inputs, tensors, strict=True))

    def hold(self, values: Iterator[Values], begin: int) -> None:
        """Keep `values`, which exist before the call `begin`."""
        self._held = list(values)
        self.begin = begin

    def go_on(self, begin: int) -> None:
        """Run up to a call and keep the values before it."""
        self.hold(map(self.to(begin - 1), self.batches()), begin)

    def to(self, end: int) -> Callable[[Values], Values]:
        """Return a function that runs a batch from its kept values through a call."""

        def run(values: Values) -> Values:
            *_, last = self.steps(values, end)
            return last

        return run

    def steps(self, values: Values, end: int) -> Iterator[Values]:
        """Yield the values that later calls need, after each call."""
        if self._calls is None:
            self._model(values[0], training=False)
            yield {}
            return
        calls = self._calls.calls
        for number in range(self.begin, end + 1):
            call = calls[number]
            args, kwargs = call.arguments(values)
            kwargs = in_inference(kwargs)
            outputs = keras.tree.flatten(call.operation(*args, **kwargs))
            values = {**values, **dict(zip(call.outputs, outputs, strict=True))}
            values = {k: x for k, x in values.items() if self._uses.get(k, 0) > number}
            yield values


def batch_within(model: Model, data: Dataset, most: int) -> int:
    """Return a batch size of at least 1 that fits in memory.

    `most` is the maximum, and the result if the memory is unknown.
    """
    if not _takes_numbers(model, data):
        return most
    if (fixed_size := fixed_batch(model, of_states=True)) is not None:
        return fixed_size
    shapes = [array.shape for array in flat_samples(model, data, 1)]
    size = peak_activation_bytes(model, shapes=shapes)
    return most if size is None else max(min(most, _BATCH_BYTES // size), 1)


def _takes_numbers(model: Model, data: Dataset) -> bool:
    graph = own_graph(model)
    if graph is None:
        return False
    is_plain = all(x.dtype != "string" and not x.sparse for x in graph.inputs)
    arrays = keras.tree.flatten(sample_inputs(data, 1))
    return is_plain and all(array is not None for array in arrays)


class _End:
    """Stops runs after the last call of some layers, counted in the first run."""

    def __init__(self, *, stops: bool) -> None:
        self._last, self._seen, self._stops = 0, 0, stops

    def count(self) -> None:
        """Count a call and stop the run after the last one."""
        self._seen += 1
        if self._stops and self._seen == self._last:
            raise _SeenEnough

    def run(self, run: Callable[[Values], Values], values: Values) -> Values:
        """Return the result of a run, empty if it was stopped."""
        self._seen = 0
        try:
            return run(values)
        except Exception:
            # Keras may wrap `_SeenEnough` in another exception.
            if not self._stops or not self._last or self._seen < self._last:
                raise
            return {}
        finally:
            self._last = self._seen


class _SeenEnough(Exception):  # noqa: N818 - not an error
    """Stops a run."""
