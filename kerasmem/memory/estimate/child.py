"""A question that is answered in a process of its own."""

import importlib
from collections.abc import Mapping
from typing import Any

from kerasmem.memory.estimate.request import Input, Request
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.processes.transfer import pack, unpack
from kerasmem.records import MemoryEstimate

_PLAIN = ("batch_size", "jit_compile", "backend", "training", "device")


def answer_in_child(
    module: str, request: Request, environment: Mapping[str, str] | None = None
) -> MemoryEstimate:
    """Return what `estimate_here` of a module answers in a fresh process.

    Args:
        module: its name.
        request: the question; its backend becomes the child's.
        environment: environment variables of the child.

    Raises:
        ModelError: if the model cannot go there.
    """
    answered = run_in_child(
        f"{__name__}:answer",
        {**job_of(request), "module": module},
        backend=request.backend,
        environment={**ON_THE_CPU, **(environment or {})},
    )
    return MemoryEstimate.from_json(answered["estimate"])


def job_of(request: Request) -> dict[str, Any]:
    """Return what `request_of` makes the same question of, in another process.

    Raises:
        ModelError: if the model cannot go there.
    """
    return {
        "model": pack(request.model, request.optimizer, request.dtype_policy),
        "inputs": [[x.name, list(x.shape), x.dtype] for x in request.inputs],
        **{name: getattr(request, name) for name in _PLAIN},
    }


def request_of(job: Mapping[str, Any]) -> Request:
    """Return the question, about a model of its own."""
    model = unpack(job["model"], jit_compile=job["jit_compile"])
    if job["training"]:
        model.optimizer.build(model.trainable_variables)
    return Request(
        model=model,
        inputs=tuple(Input(n, tuple(shape), dt) for n, shape, dt in job["inputs"]),
        optimizer=model.optimizer if job["training"] else None,
        dtype_policy=None,
        **{name: job[name] for name in _PLAIN},
    )


def answer(job: Mapping[str, Any]) -> dict[str, str]:
    """Return the estimate as JSON; runs in the child."""
    module = importlib.import_module(job["module"])
    return {"estimate": module.estimate_here(request_of(job)).to_json()}
