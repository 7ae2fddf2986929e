"""Loss, metrics and optimizer of a file of Keras 2, for `compile` of Keras 3."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras

Config = dict[str, Any]

_SHORT_NAMES = ("accuracy", "acc")
_OF_KERAS_2 = ("fn", "is_legacy_optimizer", "jit_compile", "dtype")
_LOSS_SCALE = ("LossScaleOptimizer", "LossScaleOptimizerV3")


def compile_arguments(
    training: Mapping[str, Any], custom_objects: Mapping[str, Any]
) -> Config:
    """Return the arguments for `compile`; the optimizer starts anew.

    Args:
        training: what the file says, as `.keras` or as older formats write it.
        custom_objects: the user's own losses, metrics and optimizers by name.

    Raises:
        ValueError: if Keras 3 has no such loss, metric or optimizer.
    """
    optimizer = training.get("optimizer") or training.get("optimizer_config")
    with keras.saving.custom_object_scope(dict(custom_objects)):
        return {
            "optimizer": _one(optimizer, keras.optimizers.get),
            "loss": _all(training.get("loss"), keras.losses.get),
            "metrics": _metrics(training.get("metrics")),
            "loss_weights": training.get("loss_weights"),
            "weighted_metrics": _metrics(training.get("weighted_metrics")),
        }


def _metrics(metrics: Any) -> Any:
    # A model with one output has a list in a list.
    if isinstance(metrics, list) and len(metrics) == 1 and isinstance(metrics[0], list):
        metrics = metrics[0]
    return _all(metrics, keras.metrics.get)


def _all(structure: Any, get: Callable[[Any], Any]) -> Any:
    if isinstance(structure, dict) and "class_name" not in structure:
        return {key: _all(value, get) for key, value in structure.items()}
    if isinstance(structure, list):
        return [_all(value, get) for value in structure]
    return _one(structure, get)


def _one(told: Any, get: Callable[[Any], Any]) -> Any:
    if not isinstance(told, dict):
        return told
    name = told["class_name"].rpartition(">")[2]
    config = told.get("config")
    if not isinstance(config, dict):  # a function
        return config if config is not None else name
    config = dict(config)
    if name == "MeanMetricWrapper":
        # Of a short name, Keras chooses the metric by the shapes of the outputs.
        short = config.get("name") in _SHORT_NAMES
        return config["name"] if short else config.get("fn", config["name"])
    if name in _LOSS_SCALE:
        inner = _one(config.pop("inner_optimizer"), get)
        made = keras.optimizers.LossScaleOptimizer
        return made(inner, **_known(made, config))
    made = get(name)
    made = made if isinstance(made, type) else type(made)
    return made(**_known(made, config))


def _known(made: type, config: Config) -> Config:
    """Return what the class in Keras 3 takes, a schedule of the learning rate made."""
    config = {k: v for k, v in config.items() if k not in _OF_KERAS_2}
    if config.get("reduction") == "auto":  # the mean, which is the default here
        del config["reduction"]
    rate, decay = config.get("learning_rate"), config.pop("decay", 0)
    if isinstance(rate, dict):
        schedule = getattr(keras.optimizers.schedules, rate["class_name"])
        config["learning_rate"] = schedule.from_config(rate["config"])
    elif decay:
        config["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(
            rate, decay_steps=1, decay_rate=decay
        )
    parameters = inspect.signature(made.__init__).parameters
    takes_all = "kwargs" in parameters
    return {k: v for k, v in config.items() if takes_all or k in parameters}
