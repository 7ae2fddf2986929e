"""Quantization-aware training: models with fake quantization.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018. Learned scales: Esser et al., "Learned Step
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
    """Quantization-aware training: return a fake-quantized copy of a model to train.

    The layers of the copy read their weights rounded as in `quantize`, in training and
    in inference. Training updates the float weights. Gradients ignore the rounding
    (straight-through estimator). Activation ranges and learned scales are weights too,
    so checkpoints and optimizers include them. `km.compress(aware, quantize)` then
    stores exactly the weights used in training. `km.dequantize(aware)` returns the
    float model.

    Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", 2018; Esser et al., "Learned Step Size
    Quantization" (LSQ), 2020.

    Args:
        model: A built `keras.Model`. It is not changed.
        quantize: A `km.Quantize` with the scheme and the weights to round. `"int4"` has
            one scale per channel here, unless `group_size` is set.
        activations: Boolean or None. Whether to round activations between layers to
            int8 too, in ranges that follow the training data. `True` needs a model with
            a graph. None rounds them only for `"int8-static"`, and not around layers
            that stay float. `"int8-dynamic"` always rounds the inputs of products.
            Defaults to None.
        decay: Float in [0, 1). Weight of earlier batches in the moving average of the
            ranges. Not used with learned ranges. Defaults to 0.99.
        learned_scales: Boolean. Whether to train the scales (LSQ) of weights with
            symmetric integer codes, and the widths of activation ranges. Training
            starts at the values used without LSQ. Defaults to `False`.
        ranges: Dict of tensor names to pairs of lower and upper end, such as calibrated
            ranges. Initial activation ranges. Other ranges start with the first batch.

    Returns:
        The fake-quantized copy, compiled like `model` with a new optimizer.

    Raises:
        ConfigError: If an argument is invalid, or `quantize` has the scheme `"mixed"`
            or `"nf4"`, or a `rounding` or `scales` other than the default.
        ModelError: If the model is not built, has no weights to round, is
            rematerialized or fake-quantized already, or does not contain the tensors in
            `ranges`. Also if activations are to be rounded and the model has no graph.

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
    quantize = quantize.in_training
    rounds = quantize.is_static if activations is None else activations
    _check_options(quantize, activations, decay, learned_scales, rounds=rounds)
    _check_ranges(ranges, activations, rounds=rounds)
    _check_model(model, rounds=rounds)
    with current().replicating(model):
        own = clone(model)  # later copies keep its tensor names
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
        "Quantization-aware training rounds weights to nearest. Next: use "
        "rounding='nearest' to train and to compress.",
        rounding=quantize.rounding,
    )
    _check(
        quantize.scheme != "nf4",
        "Quantization-aware training does not support 'nf4'. Next: use 'int4', or "
        "train LoRA weights on top of 'nf4'.",
        scheme=quantize.scheme,
    )
    _check(
        quantize.scheme != MIXED,
        f"Quantization-aware training does not support {MIXED!r}, which selects the "
        "schemes after training. Next: use another scheme to train and to compress.",
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
        "Quantization-aware training needs scales='max'. Next: use "
        "learned_scales=True to train the scales.",
        scales=quantize.scales,
    )
    _check(
        not learned or quantize.has_scales or (quantize.is_static and rounds),
        "learned_scales=True needs symmetric codes ('int8', 'int8-dynamic', 'int4' or "
        "'int3'), or the activations of 'int8-static'.",
        scheme=quantize.scheme,
        symmetric=quantize.symmetric,
        activations=activations,
    )


def _check_ranges(ranges: Any, activations: Any, *, rounds: bool) -> None:
    _check(
        isinstance(ranges, Mapping) and all(isinstance(name, str) for name in ranges),
        "Expected `ranges` as a dict of tensor names to pairs of ends.",
        ranges=ranges,
    )
    for name, ends in ranges.items():
        _check(
            is_range(ends),
            "Expected a range with a lower and an upper end, both finite.",
            **{f"ranges[{name!r}]": ends},
        )
    _check(
        rounds or not ranges,
        "`ranges` needs rounded activations. Next: pass activations=True.",
        activations=activations,
        ranges=ranges,
    )


def _check_model(model: Model, *, rounds: bool) -> None:
    if not isinstance(model, keras.Model):
        raise invalid("quantization_aware", "model", model, "a keras.Model")
    why = None
    if not model.built:
        why = "is not built. Next: call the model on a batch, or add an Input."
    elif is_aware(model):
        why = (
            "has fake quantization already. Next: continue to train the model, or "
            "start from its float form, km.dequantize(model)."
        )
    elif policy_of(model) is not None:
        why = (
            "uses rematerialization or compressed activations, which its copy would "
            "not. Next: pass the original model."
        )
    elif rounds and listed_graph(model) is None:
        why = (
            "has no graph to round activations in: the config of class "
            f"{type(model).__name__} does not list its layers. Next: pass "
            "activations=False."
        )
    if why is not None:
        raise ModelError(f"The model {model.name!r} {why}")
