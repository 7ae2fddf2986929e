"""Entry points of the quantization techniques."""

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
from kerasmem.compression.quantize.static.apply import (
    activation_scales,
    check_has_ranges,
    quantize_static,
)
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
    """Return a quantized model and its weight changes.

    For `"int8-static"`, the model is new. Without a graph of layers (KerasHub models),
    only the inputs of products have fixed ranges. With data, the changes contain the
    output error of layers. A model from `km.quantization_aware` is replaced by its
    float form, and its trained scales and ranges are used.

    Raises:
        ConfigError: If data is missing, or a regular expression matches no weight.
        DataError: If the data does not fit the model, or a value is not finite.
        ModelError: If there is nothing to quantize.
    """
    training_record = learned(model)
    config = config.in_training if training_record.is_aware else config
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
    """Return the config after checks that are possible before the first technique runs.

    Raises:
        ConfigError: If data is missing, or a regular expression matches no weight.
    """
    original = context.original
    if config.is_static:
        check_has_ranges(config, context.data, learned(original).ranges)
    # An earlier technique may replace layers.
    if not context.earlier and not is_aware(original):
        fields = {"include": config.include, "exclude": config.exclude}
        check_every_pattern_matches(original.name, list(weights(original)), fields)
    return config


def fold(
    model: Model, config: FoldBatchNorm, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a new model with BatchNormalization folded, and its weight changes.

    Raises:
        ModelError: If no BatchNormalization can be folded.
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
            f"The model {model.name!r} has no BatchNormalization that can be folded. "
            f"Received: {'; '.join(reasons[:3]) or 'no BatchNormalization'}."
        )
    return folded_model, changes


def equalize_channels(
    model: Model, config: Equalize, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return an equalized model and its weight changes.

    Raises:
        ModelError: If no layers can be equalized, or a weight is not finite.
    """
    del context
    if config.replace_relu6:
        model = without_relu6(model)
    return model, equalize(model)


def reestimate_statistics(
    model: Model, config: ReestimateBatchNorm, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a model with BatchNormalization statistics of the data.

    Raises:
        ConfigError: If there is no data.
        DataError: If the data does not fit the model, or a value is not finite.
        ModelError: If the model has no BatchNormalization.
    """
    if context.data is None:
        raise ConfigError(
            "Batch normalization re-estimation needs samples. Received: data=None. "
            "Next: pass data=x (--data on the command line)."
        )
    check_data(model, context.data)
    return model, batch_norm.reestimate(model, context.data, config.samples)
