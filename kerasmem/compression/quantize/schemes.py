"""What the techniques of this room do to a model, each scheme by its own module."""

from typing import Any

from kerasmem.compression import batch_norm
from kerasmem.compression.account import check_every_pattern_matches
from kerasmem.compression.quantize.apply import NO_ACTIVATION_SCALES, weight_plan
from kerasmem.compression.quantize.aware.learned import is_aware, learned
from kerasmem.compression.quantize.config import (
    MIXED,
    Equalize,
    FoldBatchNorm,
    Quantize,
    ReestimateBatchNorm,
)
from kerasmem.compression.quantize.dequantize import dequantize
from kerasmem.compression.quantize.equalize import equalize, without_relu6
from kerasmem.compression.quantize.fold import fold_batch_norm
from kerasmem.compression.quantize.mixed import mixed_plan
from kerasmem.compression.quantize.repair import store_and_repair
from kerasmem.compression.quantize.static.apply import check_has_ranges, quantize_static
from kerasmem.compression.quantize.static.inside import activation_scales
from kerasmem.compression.technique import Context
from kerasmem.errors import ConfigError, ModelError
from kerasmem.files.data import check_data
from kerasmem.graph.clone import clone, compile_as
from kerasmem.graph.layers import listed_graph, weights
from kerasmem.records import WeightChange
from kerasmem.types import Model


def quantize(
    model: Model, config: Quantize, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a model in fewer bits; for `"int8-static"`, a new one.

    In `"int8-static"` a model whose graph cannot be opened, such as one of KerasHub,
    has ranges for the inputs of its products, with floats between them.
    With data, the account of the weights says what layers lose in what they make of it.
    A model that `km.quantization_aware` made gives its float form, in new layers, with
    the scales and ranges of the training.

    Raises:
        ConfigError: if data is missing, or a regular expression matches no weight.
        DataError: if the data does not fit the model, or something is not finite.
        ModelError: if there is nothing to quantize.
    """
    training_record = learned(model)
    training_record.check_stored_so(config)
    has_ranges = config.is_static and listed_graph(model) is not None
    if training_record.is_aware:
        model = dequantize(model)
    if has_ranges:
        static_model, changes = quantize_static(
            model, config, context.data, training_record.ranges
        )
        compile_as(static_model, model)
        return static_model, changes
    if not (training_record.is_aware or context.owned):
        model = clone(model)
    inputs = NO_ACTIVATION_SCALES
    if config.is_static:
        inputs = activation_scales(model, config, context.data)
    if config.scheme == MIXED:
        plan = mixed_plan(model, config, context.data)
    else:
        plan = weight_plan(model, config, scales=training_record.scales, inputs=inputs)
    return model, store_and_repair(model, config, plan, context.data)


def check_ready(config: Quantize, context: Context) -> Quantize:
    """Return the config, if nothing is missing that is known before the first step.

    Raises:
        ConfigError: if data is missing, or a regular expression matches no weight.
    """
    original = context.original
    if config.is_static:
        check_has_ranges(config, context.data, learned(original).ranges)
    # A step before this one may make other layers.
    if not context.earlier and not is_aware(original):
        fields = {"include": config.include, "exclude": config.exclude}
        check_every_pattern_matches(original.name, list(weights(original)), fields)
    return config


def fold(
    model: Model, config: FoldBatchNorm, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a new model without the BatchNormalization that could be folded.

    Raises:
        ModelError: if there is nothing that could be folded.
    """
    del config, context
    folded_model, changes = fold_batch_norm(model)
    if folded_model is model:
        reasons = [
            f"{change.weight} {change.detail}"
            for change in changes
            if change.weight.endswith("moving_mean")
        ]
        raise ModelError(
            f"The model {model.name!r} has no BatchNormalization that could be "
            f"folded. Received: {'; '.join(reasons[:3]) or 'a model without'}."
        )
    return folded_model, changes


def equalize_channels(
    model: Model, config: Equalize, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a model whose neighboring layers have channels equally large.

    Raises:
        ModelError: if no two layers can be equalized, or weights are not finite.
    """
    del context
    if config.replace_relu6:
        model = without_relu6(model)
    return model, equalize(model)


def reestimate_statistics(
    model: Model, config: ReestimateBatchNorm, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a model with statistics of BatchNormalization gathered on the data.

    Raises:
        ConfigError: if there is no data.
        DataError: if the data does not fit the model, or something is not finite.
        ModelError: if the model has no BatchNormalization.
    """
    if context.data is None:
        raise ConfigError(
            "Statistics are gathered on samples: give data=x (--data on the command "
            "line). Received: data=None."
        )
    check_data(model, context.data)
    return model, batch_norm.reestimate(model, context.data, config.samples)
