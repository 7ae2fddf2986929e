"""The checked question that every method answers, here or in another process."""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasmem.backends.exhaustion import is_out_of_memory
from kerasmem.backends.trace import Step
from kerasmem.errors import ConfigError, KerasMemError, ModelError, first_line
from kerasmem.graph.layers import has_own_step
from kerasmem.graph.values import other_optimizers
from kerasmem.memory.estimate.sharding import ONE_DEVICE, Sharding
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.processes.transfer import pack, unpack
from kerasmem.records import EstimatePart, MemoryEstimate

_PLAIN = ("batch_size", "jit_compile", "backend", "training", "device", "generate")


@dataclass(frozen=True)
class Input:
    """One input of the model.

    Args:
        name: its name.
        shape: its shape with the batch axis, every length known.
        dtype: type of its entries such as `"float32"`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked question. Nothing in it was changed or computed.

    Args:
        model: a built `keras.Model`.
        inputs: its inputs, batch axis included; empty for a model without a graph of
            which nobody told the shape.
        batch_size: samples in the batch, from 1.
        optimizer: a `keras.optimizers.Optimizer`, built or not, whose slots are meant;
            None without training.
        dtype_policy: name of the policy to assume for every layer that has the
            model's own; None for the layers' own.
        jit_compile: whether the step is compiled.
        backend: one of `BACKENDS`; not always the running one.
        training: True for a training step, False for `predict`.
        device: one of `DEVICES`.
        generate: tokens of a sequence that `generate` of KerasHub makes, prompt and
            all; None for `predict`.
        card: the card that was named in its place, None for any.
        sharding: how several devices share the training; the answer is for one.
        labels: Labels and sample weights of the example data as nests of `Input`, each
            `None` if missing; `None` without example data.
    """

    model: Any
    inputs: tuple[Input, ...]
    batch_size: int
    optimizer: Any | None
    dtype_policy: str | None
    jit_compile: bool
    backend: str
    training: bool
    device: str
    card: str | None = None
    generate: int | None = None
    sharding: Sharding = ONE_DEVICE
    labels: tuple[Any, Any] | None = None

    @property
    def step(self) -> Step:
        """Which step is meant."""
        if self.training:
            return "train"
        return "predict" if self.generate is None else "generate"

    def of_a_replica(self) -> "Request":
        """Return the question about one replica alone, with its part of the batch."""
        part = self.with_batch_size(self.sharding.part_of(self.batch_size))
        return replace(part, sharding=ONE_DEVICE)

    def with_batch_size(self, batch_size: int) -> "Request":
        """Return the same question for another batch size."""

        def sized(x: Input) -> Input:
            return replace(x, shape=(batch_size, *x.shape[1:]))

        return replace(
            self,
            batch_size=batch_size,
            inputs=tuple(map(sized, self.inputs)),
            labels=keras.tree.map_structure(sized, self.labels, none_is_leaf=False),
        )

    def check_backend(self, running: str, how: str) -> None:
        """Raise unless the backend asked for is the running one.

        Raises:
            ConfigError: if it is another.
        """
        if self.backend != running:
            raise ConfigError(
                f"A step {how}. Expected: {running!r}. Received: "
                f"backend={self.backend!r}."
            )

    def answer(
        self,
        method: str,
        parts: Iterable[EstimatePart],
        peak: tuple[int, int, int],
        first: tuple[int | None, ...] = (None, None, None),
    ) -> MemoryEstimate:
        """Return an estimate.

        Args:
            method: how it was found.
            parts: what fills the peak.
            peak: bytes of the lower end of the interval, of the peak, of the upper end.
            first: the same of the first step, as far as it is known.
        """
        low, middle, high = peak
        first_low, first_bytes, first_high = first
        plain = {name: getattr(self, name) for name in _PLAIN}
        plain["device"] = self.card or self.device
        return MemoryEstimate(
            peak_bytes=middle,
            low_bytes=min(low, middle),
            high_bytes=max(high, middle),
            parts=tuple(part for part in parts if part.nbytes),
            method=method,
            first_step_bytes=first_bytes,
            first_step_low_bytes=first_low,
            first_step_high_bytes=first_high,
            devices=self.sharding.devices,
            **plain,
        )

    def sampler_config(self) -> Mapping[str, Any] | None:
        """Return the config of what chooses tokens, None where none are made."""
        if self.generate is None:
            return None
        return keras.saving.serialize_keras_object(self.model.sampler)

    def builds_optimizer(self) -> bool:
        """Return whether `fit` makes the slots of `model.optimizer`.

        TensorFlow leaves it alone if the step has other optimizers.
        """
        return self.backend != "tensorflow" or not other_optimizers(self.model)

    def job(self) -> dict[str, Any]:
        """Return what `request_of` makes the same question of, in another process.

        Raises:
            ModelError: if the model cannot go there.
        """
        return {
            "model": pack(self.model, self.optimizer, self.dtype_policy),
            "inputs": self.inputs,
            "labels": self.labels,
            "card": self.card,
            "sampler": self.sampler_config(),
            **{name: getattr(self, name) for name in _PLAIN},
        }


def request_of(job: Mapping[str, Any]) -> Request:
    """Return the question, about a model of its own."""
    model = unpack(job["model"], jit_compile=job["jit_compile"])
    if job["sampler"] is not None:
        model.sampler = keras.saving.deserialize_keras_object(job["sampler"])
    request = Request(
        model=model,
        inputs=job["inputs"],
        labels=job["labels"],
        optimizer=model.optimizer if job["training"] else None,
        dtype_policy=None,
        card=job.get("card"),
        **{name: job[name] for name in _PLAIN},
    )
    if request.training and request.builds_optimizer():
        model.optimizer.build(model.trainable_variables)
    return request


def answer_in_child(
    module: str, request: Request, environment: Mapping[str, str] | None = None
) -> MemoryEstimate:
    """Return what `estimate_in_process` of a module answers in a fresh process.

    Args:
        module: its name.
        request: the question; its backend becomes the child's.
        environment: environment variables of the child.

    Raises:
        ModelError: if the model cannot go there.
    """
    answer = run_in_child(
        f"{__name__}:answer_job",
        {**request.job(), "module": module},
        backend=request.backend,
        environment={**ON_THE_CPU, **(environment or {})},
        doing=f"The estimate for batch size {request.batch_size}",
    )
    return MemoryEstimate.from_json(answer["estimate"])


def answer_job(job: Mapping[str, Any]) -> dict[str, str]:
    """Return the estimate as JSON; runs in the child."""
    module, request = importlib.import_module(job["module"]), request_of(job)
    with custom_step_errors(request):
        return {"estimate": module.estimate_in_process(request).to_json()}


@contextmanager
def custom_step_errors(request: Request) -> Iterator[None]:
    """Raise a `ModelError` if a custom `train_step` fails without example data."""
    try:
        yield
    except Exception as error:
        is_known = isinstance(error, KerasMemError) or is_out_of_memory(error)
        is_own = request.training and has_own_step(request.model)
        if is_known or request.labels is not None or not is_own:
            raise
        raise ModelError(
            f"The `train_step` of {request.model.name!r} failed with a batch that was "
            "made up from the model's inputs and outputs. Received: "
            f"{type(error).__name__}: {first_line(str(error))} Next: pass data= in the "
            "form that `fit` takes: x, (x, y) or (x, y, sample_weight)."
        ) from error
