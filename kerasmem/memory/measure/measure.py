"""The one function that measures a step."""

from typing import Any

from kerasmem.errors import ConfigError
from kerasmem.memory.estimate.child import answer_in_child
from kerasmem.memory.estimate.estimate import question
from kerasmem.records import MemoryEstimate

COUNTING_ALLOCATOR = {
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
"""Environment in which TensorFlow's CPU allocator is the one of a GPU, and counts."""


def measure_step(
    model: Any,
    batch_size: int,
    **options: Any,
) -> MemoryEstimate:
    """Return the memory of a step, from real steps in a process of its own.

    Batches of up to 16 zeros run on this machine's CPU, and larger ones are extended
    from two of them. Seconds to minutes; the model stays as it is.

    Args:
        model: a built `keras.Model`.
        batch_size: samples in the batch, from 1.
        **options: `optimizer`, `dtype_policy`, `jit_compile`, `backend` (`"tensorflow"`
            or `"torch"`), `training`, `input_shape` and `data`, as in
            `estimate_memory`.

    Raises:
        ConfigError: on JAX, which tells nothing of its memory on a CPU, or if another
            argument is wrong.
        ModelError: if the child cannot make the model from its config.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> measure_step(model, 8, optimizer="sgd").method  # doctest: +SKIP
        'step'
    """
    request = question(model, batch_size, device="cpu", **options)
    if request.backend == "jax":
        raise ConfigError(
            "JAX does not tell how much memory it uses on a CPU. Expected: a backend "
            "of 'tensorflow' or 'torch'. Received: backend='jax'. Next: use "
            "km.estimate_memory(model, batch_size, method='traced')."
        )
    where = "kerasmem.memory.measure.here"
    return answer_in_child(where, request, COUNTING_ALLOCATOR)
