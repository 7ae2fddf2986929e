"""Parallel trials: a branch of a search, for several families in as many processes."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pickle import PicklingError
from typing import Any

import keras

from kerasmem.compression.search.strategy import Branch, Setting
from kerasmem.compression.search.trials import (
    Findings,
    SearchTask,
    TimeIsUpError,
    Trials,
    silent,
)
from kerasmem.errors import ChildDiedError, ConfigError
from kerasmem.graph.clone import PackedModel, packed
from kerasmem.optional import feature
from kerasmem.processes.isolated import isolated


def check_parallel(parallel: Any) -> None:
    """Raise unless trials can run there.

    Raises:
        ConfigError: if it is no executor of processes, or is not installed.
    """
    if parallel is None:
        return
    is_executor = isinstance(parallel, Executor)
    if isinstance(parallel, ThreadPoolExecutor) or not (
        is_executor or parallel in ("isolated", "ray")
    ):
        raise ConfigError(
            "The trials of a search run one after the other (None), so but each family "
            "in a process of its own ('isolated'), on Ray ('ray'), or in the processes "
            "of a concurrent.futures.Executor; threads would share their random "
            f"numbers. Received: parallel={parallel!r}."
        )
    if parallel == "ray":
        feature("RayExecutor").check()


@contextmanager
def executing(parallel: Any) -> Iterator[Executor]:
    """Return a scope with the executor; one of the caller's own stays open."""
    if isinstance(parallel, Executor):
        yield parallel
        return
    with (
        IsolatedExecutor()
        if parallel == "isolated"
        else feature("RayExecutor")() as executor
    ):
        yield executor


class IsolatedExecutor(Executor):
    """Runs each call at once in a process of its own, whose memory goes back whole."""

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Return the future of a call that has ended.

        It raises what the call raises, or `BrokenExecutor` if the process died.

        Args:
            fn: the function.
            *args: for it.
            **kwargs: for it.
        """
        future: Future[Any] = Future()
        try:
            future.set_result(isolated(fn, *args, **kwargs))
        except ChildDiedError as error:
            future.set_exception(BrokenExecutor(str(error)))
        except Exception as error:  # noqa: BLE001 - as every executor
            future.set_exception(error)
        return future


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
    task: SearchTask
    backend: str
    floats: str
    policy: keras.DTypePolicy
    images: str

    @classmethod
    def of(cls, task: SearchTask) -> "SharedSetup":
        """Return the setup of a search."""
        return cls(
            packed(task.original),
            replace(task, original=None, tell=silent),
            keras.backend.backend(),
            keras.config.floatx(),
            keras.config.dtype_policy(),
            keras.config.image_data_format(),
        )

    def unpacked(self, until: float) -> SearchTask:
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
        remaining = until - time.time()
        return replace(
            self.task,
            original=self.model.unpacked(),
            until=time.monotonic() + remaining,
        )


@dataclass(frozen=True)
class Answer:
    """What came of a remote trial.

    Args:
        value: what the branch returned; None if the time was up before.
        findings: what is known after; a better model than before is packed.
        time_is_up: whether it was.
    """

    value: Any
    findings: Findings
    time_is_up: bool


def run_remotely(
    setup: SharedSetup, branch: Branch, setting: Setting, known: Findings, until: float
) -> Answer:
    """Run a branch in the process that this is called in.

    Args:
        setup: what all branches of the search need.
        branch: what is done.
        setting: to which family.
        known: what is known before, without a model.
        until: `time.time()` at which nothing more is tried.
    """
    trials = Trials(setup.unpacked(until), known)
    value, time_is_up = None, False
    try:
        value = branch(trials, setting)
    except TimeIsUpError:
        time_is_up = True
    best = trials.findings.best
    if best.model is not None:
        best = replace(best, model=packed(best.model))
    return Answer(value, replace(trials.findings, best=best), time_is_up)


@dataclass(frozen=True)
class ParallelTrials:
    """Runs a branch for every setting, where an executor runs things.

    The answers are taken in the order of the settings, so it is of no consequence which
    process is the first to be done.

    Args:
        executor: of processes that have this package.
        setup: what they need.
    """

    executor: Executor
    setup: SharedSetup

    def __call__(
        self, trials: Trials, branch: Branch, settings: Sequence[Setting]
    ) -> list[Any]:
        """Return what a branch returns for every setting.

        Raises:
            ConfigError: if something cannot be sent there, or cannot be run there.
            TimeIsUpError: if the time is up; what was found by then is taken over.
        """
        trials.check_time()
        until = time.time() + (trials.task.until - time.monotonic())
        findings = trials.findings.without_model()
        futures: list[Future[Answer]] = []
        answers = []
        try:
            with _reaching():
                for setting in settings:  # one by one: those before an error end too
                    arguments = self.setup, branch, setting, findings, until
                    futures += [self.executor.submit(run_remotely, *arguments)]
            for future in futures:
                answers.append(_answer(future, until + _GRACE))
                if answers[-1] is not None:
                    trials.add(answers[-1].findings)
        finally:
            for future in futures:
                future.cancel()
        if any(answer is None or answer.time_is_up for answer in answers):
            raise TimeIsUpError
        return [answer.value for answer in answers]


def _answer(future: Future[Answer], until: float) -> Answer | None:
    remaining = None if math.isinf(until) else max(until - time.time(), 0.0)
    try:
        with _reaching():
            return future.result(remaining)
    except TimeoutError:
        return None


@contextmanager
def _reaching() -> Iterator[None]:
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
