"""A JAX step for XLA, from shapes only."""

from typing import Any

import jax
import keras

from kerasmem.backends.profile import Followed


def step_module(followed: Followed, batch: Any, *, training: bool) -> bytes:
    """Return the serialized `HloModuleProto` of a step, not optimized."""
    lowered = _lowered(followed, batch, training=training)
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


def compiled_bytes(followed: Followed, batch: Any, *, training: bool) -> int:
    """Return the temporary bytes that XLA plans for a step on this machine."""
    compiled = _lowered(followed, batch, training=training).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def _lowered(followed: Followed, batch: Any, *, training: bool) -> Any:
    model = followed.model
    if training:
        # Private: what makes the variables of losses and metrics before a first batch.
        model._symbolic_build(data_batch=batch)
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        *((model.optimizer.variables, model.metrics_variables) if training else ()),
    )
    state = tuple([_spec(variable.value) for variable in group] for group in groups)
    data = keras.tree.map_structure(_spec, batch)
    if training:
        return jax.jit(model.train_step, donate_argnums=0).lower(state, data)
    return jax.jit(model.predict_step).lower(state, data)


def _spec(tensor: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
