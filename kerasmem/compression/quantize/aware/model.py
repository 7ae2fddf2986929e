"""Quantization-aware training as a model: fake quantization, its state in weights.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018; of learned scales Esser et al., "Learned Step
Size Quantization", 2020.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import keras

from kerasmem.backends import current
from kerasmem.backends.variables import forget_float_weights
from kerasmem.checks import InstanceOf, OneOf, Real, invalid
from kerasmem.compression.account import matches
from kerasmem.compression.quantize.apply import WeightPlan, weight_plan
from kerasmem.compression.quantize.aware.insertion import Rounding
from kerasmem.compression.quantize.aware.learned import is_aware
from kerasmem.compression.quantize.aware.places import places, plan_of_training
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.aware.weights import first_scales
from kerasmem.compression.quantize.config import MIXED, Quantize
from kerasmem.compression.quantize.layer import WeightPlace, round_inside, to_quantized
from kerasmem.compression.quantize.math import finite
from kerasmem.compression.quantize.owners import saves_as_keras
from kerasmem.compression.quantize.static.plan import (
    Ranges,
    is_range,
    named_as_in,
    staying_float,
)
from kerasmem.errors import ConfigError, ModelError, as_received
from kerasmem.graph.activation_policy import policy_of
from kerasmem.graph.clone import clone, compile_as
from kerasmem.graph.layers import Weight, listed_graph, sublayers
from kerasmem.graph.values import to_numpy
from kerasmem.types import Model

_NO_RANGES: Ranges = MappingProxyType({})


def quantization_aware(
    model: Model,
    quantize: Quantize,
    *,
    activations: bool | None = None,
    decay: float = 0.99,
    learned_scales: bool = False,
    ranges: Ranges = _NO_RANGES,
) -> Any:
    """Quantization-aware training: return a fake-quantized model to be trained.

    Its layers read their weights as `quantize` would store them, in training and in
    inference; gradients pass the rounding as if it were not there. The float weights
    are what is trained. Ranges of activations and learned scales are weights too, so
    checkpoints and optimizers know them. `km.compress(aware, quantize)` then stores
    the very values that training has seen; `km.dequantize(aware)` is the float model.

    Returns:
        The fake-quantized copy, compiled as `model` is, with a fresh optimizer.

    Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", 2018; Esser et al., "Learned Step Size
    Quantization" (LSQ), 2020.

    Args:
        model: a built `keras.Model`; it is not touched.
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
        >>> import keras, kerasmem as km
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
        own = clone(model)  # its tensors are named as in every later copy
        plan = weight_plan(own, quantize)
        learns = learned_scales and not quantize.is_static
        weight_places = _weight_places(plan, learned=learns)
        aware, new_blocks, inside = own, dict[int, Any](), dict[int, FakeQuantize]()
        if rounds:
            static = None
            if quantize.is_static:
                excluded_weights = (w for w, _ in plan if matches(quantize.exclude, w))
                static = plan_of_training(own, staying_float(excluded_weights))
            options = {"decay": decay, "learned": learned_scales}
            rewrite = Rounding(own, places(own, static), **options)
            rewrite.begin(named_as_in(own, model, ranges))
            aware, pairs = rewrite.run(own)
            inside, new_blocks = rewrite.inside, {id(old): new for old, new in pairs}
            compile_as(aware, own)
        for key, block in {id(w.block): w.block for w, _ in plan}.items():
            new = new_blocks.get(key, block)
            if key in weight_places or key in inside:
                to_quantized(new, weight_places.get(key, []))
            if key in inside:
                round_inside(new, inside[key])
        forget_float_weights(sublayers(aware))
        return aware


def _weight_places(plan: WeightPlan, *, learned: bool) -> dict[int, list[WeightPlace]]:
    """Return how blocks are to read their weights, by the ids of the blocks.

    Args:
        plan: how weights will be stored.
        learned: whether scales are trained.
    """
    by_block: dict[int, list[WeightPlace]] = defaultdict(list)
    for weight, place in plan:
        if isinstance(place, WeightPlace):
            learns = learned and _has_scales(weight, place.coding)
            fake = replace(place, fake=True, learned=learns, path=weight.path)
            by_block[id(weight.block)].append(fake)
    return by_block


def _has_scales(weight: Weight, coding: Any) -> bool:
    if not (weight.variable.trainable and saves_as_keras(weight.owner)):
        return False
    values = finite(to_numpy(weight.variable), weight.path)
    return first_scales(coding, values) is not None


def _check(fits: Any, expected: str, **received: Any) -> None:
    if not fits:
        values = ", ".join(f"{name}={as_received(x)}" for name, x in received.items())
        raise ConfigError(f"{expected} Received: {values}.")


def _check_choice(quantize: Any) -> None:
    rule = InstanceOf(Quantize, "a Quantize, such as Quantize('int8')")
    rule.check("quantization_aware", "quantize", quantize)
    _check(
        quantize.rounding == "nearest",
        "A training step sees weights rounded to nearest. Next: train with "
        "rounding='nearest', and compress with the same.",
        rounding=quantize.rounding,
    )
    _check(
        quantize.scheme != "nf4",
        "The levels of 'nf4' are not trained. Next: 'int4', or LoRA beside 'nf4'.",
        scheme=quantize.scheme,
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
    owner = "quantization_aware"
    Real(least=0, below=1).check(owner, "decay", decay)
    OneOf((None, True, False)).check(owner, "activations", activations)
    OneOf((True, False)).check(owner, "learned_scales", learned)
    _check(
        quantize.scales == "max",
        "A training sees scales of the largest entries, or learns them: "
        "learned_scales=True.",
        scales=quantize.scales,
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
            is_range(ends),
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


def _check_model(model: Model, *, rounds: bool) -> None:
    if not isinstance(model, keras.Model):
        raise invalid("quantization_aware", "model", model, "a keras.Model")
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
