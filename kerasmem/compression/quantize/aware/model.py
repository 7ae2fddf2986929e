"""Quantization-aware training as a model: fake quantization, its state in weights.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018; of learned scales Esser et al., "Learned Step
Size Quantization", 2020.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from types import MappingProxyType
from typing import Any

import keras

from kerasmem.backends import current
from kerasmem.backends.layer_weights import forget_float_weights
from kerasmem.compression.account import matches
from kerasmem.compression.quantize.activations.calls import flatten
from kerasmem.compression.quantize.apply import choose, largest_block, place_of
from kerasmem.compression.quantize.aware.activations import FakeQuantize
from kerasmem.compression.quantize.aware.learned import is_aware
from kerasmem.compression.quantize.aware.places import INSIDE, LINEAR, Place, places
from kerasmem.compression.quantize.aware.weights import first_scales
from kerasmem.compression.quantize.config import MIXED, Quantize
from kerasmem.compression.quantize.layer import Place as WeightPlace
from kerasmem.compression.quantize.layer import round_inside, to_quantized
from kerasmem.compression.quantize.math import finite
from kerasmem.compression.quantize.owners import saves_as_keras
from kerasmem.compression.quantize.static.plan import Ranges
from kerasmem.compression.quantize.static.planning import staying_float
from kerasmem.compression.quantize.static.split import split
from kerasmem.errors import ConfigError, ModelError, as_received
from kerasmem.graph.activation_policy import policy_of
from kerasmem.graph.clone import clone, compile_as
from kerasmem.graph.layers import Weight, listed_graph, own_graph, sublayers, weights
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy

_NO_RANGES: Ranges = MappingProxyType({})


def quantization_aware(
    model: Any,
    quantize: Quantize,
    *,
    activations: bool | None = None,
    decay: float = 0.99,
    learned_scales: bool = False,
    ranges: Ranges = _NO_RANGES,
) -> Any:
    """Return a model that computes as if it were quantized, to be trained.

    Its layers read their weights as `quantize` would store them, in training and in
    inference; gradients pass the rounding as if it were not there. The float weights
    are what is trained. Ranges of activations and learned scales are weights too, so
    checkpoints and optimizers know them. `km.compress(aware, quantize)` then stores
    the very values that training has seen; `km.dequantize(aware)` is the float model.

    Args:
        model: a built `keras.Model`; it is not touched. What is returned is compiled
            as it is, with a fresh optimizer.
        quantize: how the weights are to be stored, and which.
        activations: whether what layers give each other is rounded to int8 too, in
            ranges that follow what is seen; needs a model with a graph. None for
            `"int8-static"` alone: there, whatever is computed with floats is not. In
            `"int8-dynamic"` the inputs of products are rounded in any case.
        decay: weight of what was before in the moving average of ranges, in [0, 1);
            not used where their widths are learned.
        learned_scales: whether the optimizer trains scales too, beginning with what
            they are without (LSQ): those of weights in symmetric int4 and int8, and
            of activations that are rounded the width of their ranges.
        ranges: ranges of activations to begin with, pairs of ends by the name of a
            tensor, such as a calibration finds; others begin with the first batch.

    Raises:
        ConfigError: if a value is out of its range, or `quantize` is `"mixed"`.
        ModelError: if the model has no weights yet, none to round, fake quantization
            already, no graph where its activations are to be rounded, or not the
            tensors that `ranges` are of.

    Example:
        >>> import kerasmem as km
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])
        >>> model.compile("sgd", "mse")
        >>> aware = km.quantization_aware(model, km.Quantize("int8"), activations=True)
        >>> x, y = keras.ops.ones((8, 4)), keras.ops.ones((8, 5))
        >>> history = aware.fit(x, y, verbose=0)
        >>> small = km.compress(aware, km.Quantize("int8")).model
    """
    _check_choice(quantize)
    rounds = quantize.is_static if activations is None else activations
    _check_options(quantize, activations, decay, learned_scales, rounds=rounds)
    _check_ranges(ranges, activations, rounds=rounds)
    _check_model(model, rounds=rounds)
    with current().replicating(model):
        made = clone(model)  # its tensors are named as in every later copy
        reasons = choose(made, quantize)
        learns = learned_scales and not quantize.is_static
        found = _weight_places(made, quantize, reasons, learned=learns)
        inside: dict[Where, FakeQuantize] = {}
        if rounds:
            left = [
                weight for weight, _ in reasons if matches(quantize.exclude, weight)
            ]
            static = staying_float(left) if quantize.is_static else None
            rewrite = _Rounding(made, places(made, static), decay, learned_scales)
            rewrite.begin(_named_as_in(made, model, ranges))
            own, made = made, Rebuild(rewrite).run(made)
            compile_as(made, own)
            inside = {
                _where(own, weight): rewrite.inside[id(weight.block)]
                for weight, _ in reasons
                if id(weight.block) in rewrite.inside
            }
        blocks = {_where(made, weight): weight.block for weight in weights(made)}
        for where in {**found, **inside}:
            to_quantized(blocks[where], found.get(where, []))
            if where in inside:
                round_inside(blocks[where], inside[where])
        forget_float_weights(sublayers(made))
        return made


Where = tuple[str, ...]
"""What names a block in a model and in all that are made of its config."""


def _where(model: Any, weight: Weight) -> Where:
    # A copy of a subclassed model may have another name.
    return () if weight.block is model else weight.place


def _weight_places(
    model: Any,
    quantize: Quantize,
    reasons: Sequence[tuple[Weight, str | None]],
    *,
    learned: bool,
) -> dict[Where, list[WeightPlace]]:
    """Return how blocks are to read their weights.

    Args:
        model: the model.
        quantize: how they will be stored.
        reasons: every weight with why it is left alone, None if it is not.
        learned: whether scales are trained.
    """
    block_bytes = largest_block([weight for weight, _ in reasons])
    found: dict[Where, list[WeightPlace]] = defaultdict(list)
    for weight, reason in reasons:
        if reason is None:
            place = place_of(weight, quantize, block_bytes)
            learns = learned and _has_scales(weight, place.coding)
            place = replace(place, fake=True, learned=learns, path=weight.path)
            found[_where(model, weight)].append(place)
    return found


class _Rounding(Rewrite):
    """Puts a `FakeQuantize` behind every tensor that is rounded.

    A model within the model that is called in several places has one range for all of
    them, and so has a layer for a tensor within it.

    Args:
        model: the model.
        found: where a tensor is rounded, as `places` returns it.
        decay: see `quantization_aware`.
        learned: likewise.

    Attributes:
        inside: what rounds a tensor within a layer, by the id of the layer.
    """

    def __init__(
        self,
        model: Any,
        found: Mapping[str, Place],
        decay: float,
        learned: bool,  # noqa: FBT001
    ) -> None:
        self._options = {"decay": decay, "learned": learned}
        calls = flatten(model)
        tensors = dict(zip(calls.names, calls.tensors, strict=True))
        within = {
            f"{call.name}/{name}": call.operation
            for call in calls.calls
            for name in (INSIDE, LINEAR)
        }
        self._layers: dict[int, FakeQuantize] = {}
        self.inside: dict[int, FakeQuantize] = {}
        for at, place in found.items():
            if at in tensors:
                self._add(self._layers, id(tensors[at]), place)
            else:
                self._add(self.inside, id(within[at]), place)
        self._known = {*found, *tensors, *flatten(model, split).names}

    def after(self, tensor: Any) -> Any | None:
        """Return what rounds a tensor, if it is rounded."""
        return self._layers.get(id(tensor))

    def begin(self, ranges: Ranges) -> None:
        """Have ranges begin with those that are known.

        Raises:
            ModelError: if one is of no tensor of the model.
        """
        unknown = [name for name in ranges if name not in self._known]
        if unknown:
            raise ModelError(
                f"{len(unknown)} of {len(ranges)} ranges are of no tensor of the "
                "model. Expected: names such as those of its layers, which a "
                "calibration lists. Received: ranges of "
                f"{', '.join(map(repr, unknown[:3]))}. Next: leave them out."
            )
        for layer in (*self._layers.values(), *self.inside.values()):
            for name in layer.tensors:
                if name in ranges:
                    layer.range.assign(ranges[name])

    def _add(self, layers: dict[int, FakeQuantize], at: int, place: Place) -> None:
        names = [name for name in (place.tensor, place.folded) if name is not None]
        if at in layers:
            layers[at].tensors += names
            return
        name = f"{place.tensor.replace('/', '_').replace(':', '_')}_fake_quantize"
        taken = {each.name for each in (*self._layers.values(), *self.inside.values())}
        while name in taken:
            name += "_"
        options = {**self._options, "never_negative": place.never_negative}
        layers[at] = FakeQuantize(tensors=names, name=name, **options)


def _has_scales(weight: Weight, coding: Any) -> bool:
    """Return whether a weight has scales to learn: not if frozen, or all zero."""
    if not (weight.variable.trainable and saves_as_keras(weight.owner)):
        return False
    values = finite(to_numpy(weight.variable), weight.path)
    return first_scales(coding, values) is not None


def _named_as_in(own: Any, model: Any, ranges: Ranges) -> dict[str, Any]:
    """Return ranges with those of inputs under the names that a copy has for them."""
    pairs = zip(own_graph(model).inputs, own_graph(own).inputs, strict=True)
    names = {old.name: new.name for old, new in pairs}
    return {names.get(name, name): ends for name, ends in ranges.items()}


def _check(fits: Any, expected: str, **received: Any) -> None:
    """Raise a `ConfigError` unless an argument fits."""
    if not fits:
        told = ", ".join(f"{name}={as_received(x)}" for name, x in received.items())
        raise ConfigError(f"{expected} Received: {told}.")


def _check_choice(quantize: Any) -> None:
    _check(
        isinstance(quantize, Quantize),
        "quantization_aware takes a Quantize, such as Quantize('int8').",
        quantize=quantize,
    )
    _check(
        quantize.rounding == "nearest",
        "A training step sees weights rounded to nearest. Next: train with "
        "rounding='nearest', and compress with the same.",
        rounding=quantize.rounding,
    )
    _check(
        quantize.scheme != MIXED,
        "A training step sees weights in the scheme that they will have, and "
        f"{MIXED!r} chooses one for each layer of a model that is trained. "
        "Next: train with another one, and compress with the same.",
        scheme=quantize.scheme,
    )


def _check_options(
    quantize: Quantize, activations: Any, decay: Any, learned: Any, *, rounds: bool
) -> None:
    is_number = isinstance(decay, Real) and not isinstance(decay, bool)
    _check(
        is_number and 0 <= float(decay) < 1,
        "The decay of quantization_aware is a number, at least 0 and below 1.",
        decay=decay,
    )
    _check(
        activations in (None, True, False),
        "The activations of quantization_aware are rounded, True, or not, False; None "
        "for what the scheme says.",
        activations=activations,
    )
    _check(
        learned in (True, False),
        "The scales of quantization_aware are learned, True, or not, False.",
        learned_scales=learned,
    )
    _check(
        not learned or quantize.has_scales or (quantize.is_static and rounds),
        "Scales are learned of symmetric codes: 'int8', 'int8-dynamic' or 'int4', or "
        "of activations in 'int8-static'.",
        scheme=quantize.scheme,
        symmetric=quantize.symmetric,
        activations=activations,
    )


def _check_ranges(ranges: Any, activations: Any, *, rounds: bool) -> None:
    _check(
        isinstance(ranges, Mapping) and all(isinstance(name, str) for name in ranges),
        "Ranges are pairs of ends by the name of a tensor.",
        ranges=ranges,
    )
    for name, ends in ranges.items():
        _check(
            _is_range(ends),
            "A range has a lower and an upper end, both finite.",
            **{f"ranges[{name!r}]": ends},
        )
    _check(
        rounds or not ranges,
        "Ranges are of activations, which are not rounded. Next: pass "
        "activations=True, or no ranges.",
        activations=activations,
        ranges=ranges,
    )


def _is_range(ends: Any) -> bool:
    is_pair = isinstance(ends, tuple | list) and len(ends) == 2
    if not is_pair or not all(isinstance(end, Real) for end in ends):
        return False
    return all(map(math.isfinite, ends)) and ends[0] <= ends[1]


def _check_model(model: Any, *, rounds: bool) -> None:
    _check(isinstance(model, keras.Model), "Expected a keras.Model.", model=model)
    why = None
    if not model.built:
        why = (
            "has no weights to round yet. Next: call it on a batch or give it an Input."
        )
    elif is_aware(model):
        why = (
            "has fake quantization already. Next: train it on, or make one of its "
            "float form, km.dequantize(model)."
        )
    elif policy_of(model) is not None:
        why = (
            "computes activations again in its backward pass, which a copy of it does "
            "not. Next: hand in the model that it was made of."
        )
    elif rounds and listed_graph(model) is None:
        why = (
            "has no graph: activations are rounded between the layers that a model's "
            f"config lists, and that of class {type(model).__name__} lists none. Next: "
            "pass activations=False."
        )
    if why is not None:
        raise ModelError(f"The model {model.name!r} {why}")
