"""Checks the arguments of `estimate_memory`."""

from typing import Any

import keras

from kerasmem.checks import invalid
from kerasmem.errors import ConfigError, ModelError, did_you_mean
from kerasmem.graph.layers import sublayers
from kerasmem.graph.outputs import near_name
from kerasmem.graph.saving import unbuilt_copy
from kerasmem.memory.estimate.device_specs import CARDS, is_card
from kerasmem.types import Model, Optimizer

DEVICES = ("gpu", "cpu")


def checked_device(device: Any) -> tuple[str, str | None]:
    """Return one of `DEVICES`, and the GPU if `device` is the name of a GPU.

    Raises:
        ConfigError: If `device` is neither.
    """
    if isinstance(device, str) and is_card(device):
        return "gpu", device
    if device in DEVICES:
        return device, None
    valid = f"one of {', '.join((*DEVICES, *CARDS))}"
    error = invalid("estimate_memory", "device", device, valid)
    raise ConfigError(f"{error}{did_you_mean(device, CARDS)}")


def checked_optimizer(
    model: Model, optimizer: Optimizer, policy: str | None = None
) -> Any:
    """Return the given optimizer, or by default the compiled one.

    Raises:
        ConfigError: If Keras has no optimizer with this name.
        ModelError: If no optimizer is given and the model has none.
    """
    own = getattr(model, "optimizer", None)
    if optimizer is None:
        optimizer = own if model.compiled else None
        if optimizer is None:
            raise ModelError(
                "The memory of a training step depends on the optimizer. Expected: a "
                f"compiled model or an optimizer. Received: model={model.name!r}, not "
                "compiled, and optimizer=None. Next: pass optimizer='adam', or "
                "training=False."
            )
    try:
        optimizer = keras.optimizers.get(optimizer)
    except (ValueError, TypeError) as error:
        valid = "a keras.optimizers.Optimizer or its name"
        message = invalid("estimate_memory", "optimizer", optimizer, valid)
        message = f"{message}{near_name(optimizer, keras.optimizers)}"
        raise ConfigError(message) from error
    if policy is None and optimizer is own:
        return optimizer  # `compile` has already wrapped this optimizer.
    return scaled_if_half(optimizer, policy or model.dtype_policy.name)


def scaled_if_half(optimizer: Optimizer, policy: str) -> Any:
    """Return the optimizer as wrapped by `model.compile`.

    With `"mixed_float16"`, Keras wraps the optimizer in a `LossScaleOptimizer`, which
    delays all updates until it has all gradients. The argument is not changed.
    """
    kinds = keras.optimizers
    is_wrapper = isinstance(optimizer, (kinds.LossScaleOptimizer, kinds.MultiOptimizer))
    if is_wrapper or policy != "mixed_float16":
        return optimizer
    return kinds.LossScaleOptimizer(unbuilt_copy(optimizer))


def checked_policy(dtype_policy: Any) -> str | None:
    """Return the name of a dtype policy, or `None`.

    Raises:
        ConfigError: If Keras has no such policy.
    """
    if dtype_policy is None:
        return None
    try:
        return keras.dtype_policies.get(dtype_policy).name
    except (ValueError, TypeError) as error:
        valid = "a Keras dtype policy such as 'float32' or 'mixed_bfloat16'"
        raise invalid("estimate_memory", "dtype_policy", dtype_policy, valid) from error


def compiles(
    model: Model, backend: str, device: str, *, asked: bool | None, replicas: int = 1
) -> bool:
    """Return whether Keras compiles the step on `backend` and `device`.

    If `asked` is `None`, a setting of the model that differs from Keras's automatic
    choice is used, or else the automatic choice.
    """
    on_gpu = backend == "tensorflow" and device == "gpu"
    if asked is None:
        # Keras does not record whether the user chose `jit_compile`.
        here = model._resolve_auto_jit_compile()
        was_chosen = model.compiled and model.jit_compile != here
        by_itself = (on_gpu and replicas == 1) or backend == "jax"
        asked = model.jit_compile if was_chosen else by_itself
    # TensorFlow runs these layers in cuDNN, which XLA cannot compile.
    cudnn = (True, "auto") if on_gpu else ()
    return bool(asked) and not any(
        not layer.supports_jit or getattr(layer, "use_cudnn", None) in cudnn
        for layer in sublayers(model)
    )


def compiles_generation(
    model: Model, backend: str, device: str, **options: Any
) -> bool:
    """Return whether KerasHub compiles generation: always on JAX, never on torch.

    Raises:
        ConfigError: If the opposite is requested on JAX or torch.
    """
    if backend != "tensorflow":
        is_compiled = backend == "jax"
        if options["asked"] not in (None, is_compiled):
            raise ConfigError(
                f"KerasHub {'always' if is_compiled else 'never'} compiles generation "
                f"on {backend}. Expected: jit_compile=None. Received: "
                f"jit_compile={options['asked']}."
            )
        return is_compiled
    return compiles(model, backend, device, **options)
