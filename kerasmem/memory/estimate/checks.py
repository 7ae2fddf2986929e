"""The arguments of `estimate_memory`, checked: one clear error each."""

from typing import Any

import keras

from kerasmem.checks import OneOf, invalid
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.layers import sublayers
from kerasmem.graph.saving import unbuilt_copy
from kerasmem.memory.estimate.device_specs import CARDS, is_card
from kerasmem.types import Model, Optimizer

DEVICES = ("gpu", "cpu")


def checked_device(device: Any) -> tuple[str, str | None]:
    """Return one of `DEVICES`, and the card if `device` names one.

    Raises:
        ConfigError: if it is neither.
    """
    if isinstance(device, str) and is_card(device):
        return "gpu", device
    OneOf((*DEVICES, *CARDS)).check("estimate_memory", "device", device)
    return device, None


def checked_optimizer(
    model: Model, optimizer: Optimizer, policy: str | None = None
) -> Any:
    """Return the optimizer that is meant: the one given, or the compiled one.

    Args:
        model: the model.
        optimizer: what was given.
        policy: name of an assumed dtype policy, None for the model's own.

    Raises:
        ConfigError: if Keras knows no optimizer of that name.
        ModelError: if none was given and the model has none.
    """
    own = getattr(model, "optimizer", None)
    if optimizer is None:
        optimizer = own if model.compiled else None
        if optimizer is None:
            raise ModelError(
                "Training needs an optimizer, and its slots need memory. Expected: a "
                f"compiled model or an optimizer. Received: model={model.name!r}, not "
                "compiled, and optimizer=None. Next: pass optimizer='adam', or "
                "training=False."
            )
    try:
        optimizer = keras.optimizers.get(optimizer)
    except (ValueError, TypeError) as error:
        valid = "a keras.optimizers.Optimizer or the name of one"
        raise invalid("estimate_memory", "optimizer", optimizer, valid) from error
    if policy is None and optimizer is own:
        return optimizer  # `compile` took it up already
    return scaled_if_half(optimizer, policy or model.dtype_policy.name)


def scaled_if_half(optimizer: Optimizer, policy: str) -> Any:
    """Return the optimizer as `model.compile` would take it up.

    With `"mixed_float16"` Keras puts it into one that scales the loss, which holds back
    every update until it has seen all gradients. The one handed in stays as it is.

    Args:
        optimizer: a checked optimizer.
        policy: name of the model's dtype policy.
    """
    kinds = keras.optimizers
    is_wrapper = isinstance(optimizer, (kinds.LossScaleOptimizer, kinds.MultiOptimizer))
    if is_wrapper or policy != "mixed_float16":
        return optimizer
    return kinds.LossScaleOptimizer(unbuilt_copy(optimizer))


def checked_policy(dtype_policy: Any) -> str | None:
    """Return the name of a dtype policy, None for None.

    Raises:
        ConfigError: if Keras knows no such policy.
    """
    if dtype_policy is None:
        return None
    try:
        return keras.dtype_policies.get(dtype_policy).name
    except (ValueError, TypeError) as error:
        valid = "a dtype policy of Keras, such as 'float32' or 'mixed_bfloat16'"
        raise invalid("estimate_memory", "dtype_policy", dtype_policy, valid) from error


def compiles(
    model: Model, backend: str, device: str, *, asked: bool | None, replicas: int = 1
) -> bool:
    """Return whether Keras compiles the step on `backend` and `device`.

    Args:
        model: a built model.
        backend: one of `BACKENDS`.
        device: one of `DEVICES`.
        asked: what was asked for; None for what the model was compiled with where that
            is not what Keras chooses on this machine, else for what it chooses there.
        replicas: of a strategy of TensorFlow, of which Keras by itself compiles none.
    """
    on_gpu = backend == "tensorflow" and device == "gpu"
    if asked is None:
        # Keras keeps no word about whether the choice was the user's.
        here = model._resolve_auto_jit_compile()
        was_chosen = model.compiled and model.jit_compile != here
        by_itself = (on_gpu and replicas == 1) or backend == "jax"
        asked = model.jit_compile if was_chosen else by_itself
    # TensorFlow gives such a layer to cuDNN, which XLA cannot compile.
    cudnn = (True, "auto") if on_gpu else ()
    return bool(asked) and not any(
        not layer.supports_jit or getattr(layer, "use_cudnn", None) in cudnn
        for layer in sublayers(model)
    )


def compiles_generation(
    model: Model, backend: str, device: str, **options: Any
) -> bool:
    """Return whether KerasHub compiles what generates: always on JAX, never on torch.

    Args:
        model: a built model.
        backend: one of `BACKENDS`.
        device: one of `DEVICES`.
        **options: those of `compiles`, which decides on TensorFlow.

    Raises:
        ConfigError: if the other is asked for on JAX or torch.
    """
    if backend != "tensorflow":
        is_compiled = backend == "jax"
        if options["asked"] not in (None, is_compiled):
            raise ConfigError(
                f"KerasHub {'always' if is_compiled else 'never'} compiles what "
                f"generates on {backend}. Expected: jit_compile=None. Received: "
                f"jit_compile={options['asked']}."
            )
        return is_compiled
    return compiles(model, backend, device, **options)
