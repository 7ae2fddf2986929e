"""The same thing done to several families at a time, in other processes."""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any

from kerasmem.compression.search.errand import Answer, Errand, Parcel, run
from kerasmem.compression.search.spread import Branch, Choice
from kerasmem.compression.search.trials import TimeIsUpError, Trials
from kerasmem.errors import ConfigError

_GRACE = 10.0
"""Seconds in which a process hands in what it has when the time is up."""


@dataclass(frozen=True)
class Elsewhere:
    """Runs a branch for every choice, where an executor runs things.

    The answers are taken in the order of the choices, so it is of no consequence which
    process is the first to be done.

    Args:
        executor: of processes that have this package.
        parcel: what they need.
    """

    executor: Executor
    parcel: Parcel

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
        errands = [Errand(branch, choice, found, until) for choice in choices]
        futures: list[Future[Answer]] = []
        answers = []
        try:
            with _reaching():
                for errand in errands:  # one by one: those before an error end too
                    futures += [self.executor.submit(run, self.parcel, errand)]
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
