"""The options that make sense for a model on a backend, one changed at a time."""

from dataclasses import dataclass

import keras

from kerasmem.backends.trace import tracer
from kerasmem.graph.treated import treatment_of
from kerasmem.memory.estimate.request import Request

_POLICIES = ("mixed_float16", "mixed_bfloat16")
_ACCUMULATIONS = (2, 4)


@dataclass(frozen=True)
class Variant:
    """One way to train; what is None is as compiled.

    Args:
        name: what a person calls it.
        how: what to write to train like this.
        jit_compile: whether the step is compiled.
        dtype_policy: the policy of every layer that has the model's own.
        left_out: a pass of the graph optimizer that does not run.
        rematerialized: whether activations are computed again, by the plan with the
            lowest estimated peak.
        steps_per_update: into how many batches the batch is split.
        devices: over how many devices the batch is spread.
    """

    name: str
    how: str = ""
    jit_compile: bool | None = None
    dtype_policy: str | None = None
    left_out: str | None = None
    rematerialized: bool = False
    steps_per_update: int = 1
    devices: int = 1


AS_COMPILED = Variant("as compiled")


def variants(request: Request, devices: int) -> tuple[Variant, ...]:
    """Return what to try beside `AS_COMPILED`.

    Args:
        request: the model as compiled, and its batch.
        devices: number of devices there are.
    """
    found = [
        _jit(not request.jit_compile),
        *_mixed(request),
        *_graph_passes(),
        *_rematerialized(request),
        *_accumulated(request),
    ]
    # Keras on torch trains on several devices only with several processes.
    if devices > 1 and request.backend != "torch":
        found.append(_data_parallel(request, devices))
    return tuple(found)


def _jit(on: bool) -> Variant:  # noqa: FBT001 - its one argument
    how = f"model.compile(..., jit_compile={on})"
    return Variant(f"jit {'on' if on else 'off'}", how, jit_compile=on)


def _mixed(request: Request) -> list[Variant]:
    how = "keras.config.set_dtype_policy({!r}) before the model is made"
    return [
        Variant(policy, how.format(policy), dtype_policy=policy)
        for policy in _POLICIES
        if policy != request.model.dtype_policy.name
    ]


def _graph_passes() -> list[Variant]:
    if keras.backend.backend() != "tensorflow":
        return []
    how = "tf.config.optimizer.set_experimental_options({{{!r}: False}})"
    return [
        Variant(f"{name} off", how.format(key), left_out=name)
        for name, key in tracer("options").GRAPH_OPTIONS.items()
    ]


def _rematerialized(request: Request) -> list[Variant]:
    if treatment_of(request.model) is not None:
        return []
    how = f"km.rematerialize(model, batch_size={request.batch_size})"
    return [Variant("rematerialized", how, rematerialized=True)]


def _accumulated(request: Request) -> list[Variant]:
    return [
        Variant(
            f"accumulation, {count} batches",
            f"batch_size={request.batch_size // count} and an optimizer with "
            f"gradient_accumulation_steps={count}",
            steps_per_update=count,
        )
        for count in _ACCUMULATIONS
        if count <= request.batch_size
    ]


def _data_parallel(request: Request, devices: int) -> Variant:
    how = (
        "make and compile the model in tf.distribute.MirroredStrategy().scope()"
        if request.backend == "tensorflow"
        else "keras.distribution.set_distribution(keras.distribution.DataParallel())"
    )
    return Variant(f"data parallel, {devices} devices", how, devices=devices)
