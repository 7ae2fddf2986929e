"""Lowering of a JAX step for XLA from shapes only."""

import io
from collections.abc import Callable
from itertools import chain
from typing import Any

import jax
import keras

from kerasmem.backends.jax.recompute import traced_for
from kerasmem.backends.profile import Followed
from kerasmem.backends.trace import STOP_TOKEN, Step
from kerasmem.types import Dataset, Model, Tensor, Tensors


def step_module(followed: Followed, batch: Tensors, *, step: Step) -> bytes:
    """Return the serialized, unoptimized `HloModuleProto` of a step."""
    program = _lowered(followed, batch, step)
    return program.compiler_ir("hlo").as_serialized_hlo_module_proto()


def gpu_program(followed: Followed, batch: Tensors, *, step: Step) -> tuple[str, bytes]:
    """Return `"stablehlo"` and the MLIR bytecode of a step for a GPU."""
    program = _lowered(followed, batch, step, platform="cuda")
    code = io.BytesIO()
    program.compiler_ir("stablehlo").operation.write_bytecode(code)
    return "stablehlo", code.getvalue()


def compiled_bytes(followed: Followed, batch: Tensors, *, step: Step) -> int:
    """Return the temporary bytes that XLA plans for a step on this machine."""
    executable = _lowered(followed, batch, step).compile()
    return executable.memory_analysis().temp_size_in_bytes


def _lowered(
    followed: Followed, batch: Tensors, step: Step, *, platform: str | None = None
) -> Any:
    model = followed.model
    training = step == "train"
    if training:
        # Private: creates the variables of losses and metrics before the first batch.
        model._symbolic_build(data_batch=batch)
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        *((model.optimizer.variables, model.metrics_variables) if training else ()),
    )
    state = tuple([_spec(variable.value) for variable in group] for group in groups)
    data = keras.tree.map_structure(_part, batch)
    if training:
        # As in Keras: with several devices, the state keeps its sharding.
        shards = jax.tree.map(lambda x: x.sharding, state)
        outputs = (None, shards) if _is_distributed() else None
        function = jax.jit(model.train_step, donate_argnums=0, out_shardings=outputs)
    elif step == "generate":
        state = ([_spec(v.value) for v in model.sampler.variables], *state)
        function = jax.jit(_generate_step(model))
    else:
        function = jax.jit(model.predict_step)
    with traced_for(platform):
        trace = function.trace(state, data)
    return trace.lower(lowering_platforms=(platform,) if platform else None)


def _generate_step(model: Model) -> Callable[[Any, Any], Any]:
    groups = (
        model.sampler.variables,
        model.trainable_variables,
        model.non_trainable_variables,
    )

    def generate(state: Any, data: Dataset) -> Any:
        pairs = (zip(*both, strict=True) for both in zip(groups, state, strict=True))
        with keras.StatelessScope(state_mapping=chain(*pairs)) as scope:
            tokens = model.generate_step(*data, (STOP_TOKEN,))
        return tokens, [scope.get_current_value(v) for v in groups[0]]

    return generate


def _is_distributed() -> bool:
    return keras.distribution.distribution() is not None


def _spec(value: Any) -> jax.ShapeDtypeStruct:
    sharding = value.sharding if _is_distributed() else None
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)


def _part(x: Tensor) -> jax.ShapeDtypeStruct:
    distribution = keras.distribution.distribution()
    layout = distribution and distribution.get_data_layout(x.shape).backend_layout
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout)
