"""Runs the trials of several families in parallel processes."""

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
from kerasmem.processes.isolated import isolated


def check_parallel(parallel: Any) -> None:
    """Raises `ConfigError` unless `parallel` is a supported executor."""
    if parallel is None:
        return
    is_executor = isinstance(parallel, Executor)
    if isinstance(parallel, ThreadPoolExecutor) or not (
        is_executor or parallel == "isolated"
    ):
        raise ConfigError(
            "Invalid `parallel` in compress. Expected: None, 'isolated' or a "
            "concurrent.futures.Executor of processes; threads would share random "
            f"number generators. Received: parallel={parallel!r}."
        )


@contextmanager
def executing(parallel: Any) -> Iterator[Executor]:
    """Yields the executor. An executor of the caller is not shut down."""
    if isinstance(parallel, Executor):
        yield parallel
        return
    with IsolatedExecutor() as executor:
        yield executor


class IsolatedExecutor(Executor):
    """Runs each call at once in a new process, whose memory is then fully released."""

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Runs a call and returns its completed future.

        The future raises the error of the call, or `BrokenExecutor` if the process
        died.
        """
        future: Future[Any] = Future()
        try:
            future.set_result(isolated(fn, *args, **kwargs))
        except ChildDiedError as error:
            future.set_exception(BrokenExecutor(str(error)))
        except Exception as error:  # noqa: BLE001 - executors forward all errors
            future.set_exception(error)
        return future


_PROCESS = os.getpid()
"""Process id at import, to detect a fork."""

_GRACE = 10.0
"""Seconds after the deadline in which a process can return its results."""


@dataclass(frozen=True)
class SharedSetup:
    """Data that all remote trials of a search need, sent once.

    `floats`, `policy` and `images` are the Keras settings `floatx`, `dtype_policy` and
    `image_data_format`.
    """

    model: PackedModel
    task: SearchTask
    backend: str
    floats: str
    policy: keras.DTypePolicy
    images: str

    @classmethod
    def of(cls, task: SearchTask) -> "SharedSetup":
        """Creates the setup of a search."""
        return cls(
            packed(task.original),
            replace(task, original=None, tell=silent),
            keras.backend.backend(),
            keras.config.floatx(),
            keras.config.dtype_policy(),
            keras.config.image_data_format(),
        )

    def unpacked(self, until: float) -> SearchTask:
        """Returns the task in this process, with a `time.time()` deadline.

        Raises:
            ConfigError: If the process was forked or uses another backend.
        """
        if os.getpid() != _PROCESS:
            raise ConfigError(
                "A process forked from a process with a loaded framework hangs. Next: "
                "use spawned processes, such as ProcessPoolExecutor("
                "mp_context=multiprocessing.get_context('spawn'))."
            )
        if keras.backend.backend() != self.backend:
            raise ConfigError(
                "All processes of a search must use the same backend. Expected: "
                f"KERAS_BACKEND={self.backend} in each process. Received: "
                f"KERAS_BACKEND={keras.backend.backend()}."
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
    """Result of a remote branch.

    `value` is `None` if time ran out. A better model in `findings` is packed.
    """

    value: Any
    findings: Findings
    time_is_up: bool


def run_remotely(
    setup: SharedSetup, branch: Branch, setting: Setting, known: Findings, until: float
) -> Answer:
    """Runs a branch of the search in the current process.

    `known` contains earlier findings without a model. `until` is a `time.time()`
    deadline.
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
    """Runs a branch for every setting on an executor.

    Results are merged in the order of the settings, so the outcome does not depend on
    the order of completion. The processes must be able to import kerasmem.
    """

    executor: Executor
    setup: SharedSetup

    def __call__(
        self, trials: Trials, branch: Branch, settings: Sequence[Setting]
    ) -> list[Any]:
        """Returns the values of a branch for all settings.

        Raises:
            ConfigError: If data cannot be sent to a process, or used there.
            TimeIsUpError: If time ran out. Earlier findings are merged first.
        """
        trials.check_time()
        until = time.time() + (trials.task.until - time.monotonic())
        findings = trials.findings.without_model()
        futures: list[Future[Answer]] = []
        answers = []
        try:
            with _reaching():
                for setting in settings:  # keeps earlier futures for `cancel` on error
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
            "A process of the search died. Either it ran out of memory: then use fewer "
            "processes. Or it could not unpickle its input: all parts of a model must "
            "be importable from a module, and processes must be started "
            f"under `if __name__ == '__main__':`. Received: {_in_short(error)}"
        ) from error
    except (TypeError, AttributeError, ValueError, PicklingError) as error:
        if "pickle" not in str(error):
            raise
        raise ConfigError(
            "The model, its loss and metrics, or the callbacks cannot be sent to other "
            "processes. Expected: objects from importable modules, without open files "
            f"or locks. Received: {_in_short(error)}"
        ) from error


def _in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
