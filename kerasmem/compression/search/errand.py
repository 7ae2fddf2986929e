"""Some trials of a search as a process of its own makes them."""

import os
import time
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasmem.compression.search.found import Found
from kerasmem.compression.search.spread import Branch, Choice
from kerasmem.compression.search.task import Task, silent
from kerasmem.compression.search.trials import TimeIsUpError, Trials
from kerasmem.errors import ConfigError
from kerasmem.graph.packed import PackedModel, packed

_PROCESS = os.getpid()
"""Which is another one in a fork."""


@dataclass(frozen=True)
class Parcel:
    """What all errands of a search need.

    Args:
        model: the model.
        task: what is searched for, without the model.
        backend: that Keras runs on.
        floats: type of new weights, as Keras is set.
        policy: types of the layers that a layer of the user's own makes, as Keras is
            set.
        images: where the channels are in images, as Keras is set.
    """

    model: PackedModel
    task: Task
    backend: str
    floats: str
    policy: keras.DTypePolicy
    images: str

    @classmethod
    def of(cls, task: Task) -> "Parcel":
        """Return the parcel of a search."""
        return cls(
            packed(task.original),
            replace(task, original=None, tell=silent),
            keras.backend.backend(),
            keras.config.floatx(),
            keras.config.dtype_policy(),
            keras.config.image_data_format(),
        )

    def unpacked(self, until: float) -> Task:
        """Return the task in this process.

        Args:
            until: `time.time()` at which nothing more is tried.

        Raises:
            ConfigError: if nothing can be tried here.
        """
        if os.getpid() != _PROCESS:
            raise ConfigError(
                "A process that was forked from one with a framework in it hangs. "
                "Next: processes that start anew, such as ProcessPoolExecutor("
                "mp_context=multiprocessing.get_context('spawn'))."
            )
        if keras.backend.backend() != self.backend:
            raise ConfigError(
                "A search is on one backend in all of its processes: set KERAS_BACKEND="
                f"{self.backend} where they start. Received: KERAS_BACKEND="
                f"{keras.backend.backend()}."
            )
        keras.config.set_floatx(self.floats)
        keras.config.set_dtype_policy(self.policy)
        keras.config.set_image_data_format(self.images)
        left = until - time.time()
        return replace(
            self.task, original=self.model.unpacked(), until=time.monotonic() + left
        )


@dataclass(frozen=True)
class Errand:
    """One branch of a search.

    Args:
        branch: what is done.
        choice: to which family.
        found: what is known before, without a model.
        until: `time.time()` at which nothing more is tried.
    """

    branch: Branch
    choice: Choice
    found: Found
    until: float


@dataclass(frozen=True)
class Answer:
    """What came of an errand.

    Args:
        value: what the branch returned; None if the time was up before.
        found: what is known after; a better model than before is packed.
        time_is_up: whether it was.
    """

    value: Any
    found: Found
    time_is_up: bool


def run(parcel: Parcel, errand: Errand) -> Answer:
    """Run a branch in the process that this is called in."""
    trials = Trials(parcel.unpacked(errand.until), errand.found)
    value, time_is_up = None, False
    try:
        value = errand.branch(trials, errand.choice)
    except TimeIsUpError:
        time_is_up = True
    best = trials.found.best
    if best.model is not None:
        best = replace(best, model=packed(best.model))
    return Answer(value, replace(trials.found, best=best), time_is_up)
