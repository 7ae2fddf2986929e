"""Parallel trials: a branch of a search, for several families in as many processes."""

import math
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pickle import PicklingError
from typing import Any

import keras

from kerasmem.compression.search.search import Branch, Choice
from kerasmem.compression.search.task import Task, silent
from kerasmem.compression.search.trials import Found, TimeIsUpError, Trials
from kerasmem.errors import ConfigError
from kerasmem.graph.clone import PackedModel, packed

_PROCESS = os.getpid()
"""Which is another one in a fork."""

_GRACE = 10.0
"""Seconds in which a process hands in what it has when the time is up."""


@dataclass(frozen=True)
class SharedSetup:
    """What all remote trials of a search need, sent once.

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
    def of(cls, task: Task) -> "SharedSetup":
        """Return the setup of a search."""
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
class RemoteTrial:
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
    """What came of a remote trial.

    Args:
        value: what the branch returned; None if the time was up before.
        found: what is known after; a better model than before is packed.
        time_is_up: whether it was.
    """

    value: Any
    found: Found
    time_is_up: bool


def run(setup: SharedSetup, trial: RemoteTrial) -> Answer:
    """Run a branch in the process that this is called in."""
    trials = Trials(setup.unpacked(trial.until), trial.found)
    value, time_is_up = None, False
    try:
        value = trial.branch(trials, trial.choice)
    except TimeIsUpError:
        time_is_up = True
    best = trials.found.best
    if best.model is not None:
        best = replace(best, model=packed(best.model))
    return Answer(value, replace(trials.found, best=best), time_is_up)


@dataclass(frozen=True)
class ParallelTrials:
    """Runs a branch for every choice, where an executor runs things.

    The answers are taken in the order of the choices, so it is of no consequence which
    process is the first to be done.

    Args:
        executor: of processes that have this package.
        setup: what they need.
    """

    executor: Executor
    setup: SharedSetup

    def __call__(
        self, trials: Trials, branch: Branch, choices: Sequence[Choice]
    ) -> list[Any]:
        """Return what a branch returns for every choice.

        Raises:
            ConfigError: if something cannot be sent there, or cannot be run there.
            TimeIsUpError: if the time is up; what was found by then is taken over.
        """
        trials.check_time()
        until = time.time() + (trials.task.until - time.monotonic())
        found = trials.found.without_model()
        remote = [RemoteTrial(branch, choice, found, until) for choice in choices]
        futures: list[Future[Answer]] = []
        answers = []
        try:
            with _reaching():
                for trial in remote:  # one by one: those before an error end too
                    futures += [self.executor.submit(run, self.setup, trial)]
            for future in futures:
                answers.append(_answer(future, until + _GRACE))
                if answers[-1] is not None:
                    trials.add(answers[-1].found)
        finally:
            for future in futures:
                future.cancel()
        if any(answer is None or answer.time_is_up for answer in answers):
            raise TimeIsUpError
        return [answer.value for answer in answers]


def _answer(future: Future[Answer], until: float) -> Answer | None:
    """Return what comes by `time.time() == until`, None if nothing does."""
    left = None if math.isinf(until) else max(until - time.time(), 0.0)
    try:
        with _reaching():
            return future.result(left)
    except TimeoutError:
        return None


@contextmanager
def _reaching() -> Iterator[None]:
    """Raise `ConfigError` if something cannot be sent, or a process has died."""
    try:
        yield
    except BrokenExecutor as error:
        raise ConfigError(
            "A process of the search ended before its trials did. Either memory ran "
            "out: then take fewer processes. Or it could not open what it was sent: "
            "parts of a model have to come from a module, and processes be started "
            f"under `if __name__ == '__main__':`. Received: {_in_short(error)}"
        ) from error
    except (TypeError, AttributeError, ValueError, PicklingError) as error:
        if "pickle" not in str(error):
            raise
        raise ConfigError(
            "A search in other processes sends them the model, its loss and metrics, "
            "and the callbacks, and something of these cannot be sent. Expected: "
            "parts from a module, without open files or locks. Received: "
            f"{_in_short(error)}"
        ) from error


def _in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
