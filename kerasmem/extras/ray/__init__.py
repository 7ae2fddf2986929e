"""Runs the trials of a search as tasks of a Ray cluster."""

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from functools import partial
from typing import Any

import keras

from kerasmem.errors import ConfigError

_USAGE_REPORTS = "RAY_USAGE_STATS_ENABLED"


class RayExecutor(Executor):
    """Executor whose calls are tasks of the connected Ray cluster.

    Without a connection, it starts a local cluster and shuts it down at the end. A task
    uses one CPU core, and one GPU if the cluster has any.
    """

    @staticmethod
    def check() -> None:
        """Raise `ConfigError` if Ray is not installed."""
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "Parallel trials need Ray. Expected: the package ray is installed (pip "
                "install kerasmem[ray]). Received: no module 'ray'."
            )

    def __init__(self) -> None:
        # Imported by name, because type checkers cannot resolve a missing package.
        self._ray: Any = importlib.import_module("ray")
        self._is_own = not self._ray.is_initialized()
        if self._is_own:
            self._start()
        variables = {"KERAS_BACKEND": keras.backend.backend()}
        self._options = {
            "num_cpus": 1,
            "num_gpus": 1 if self._ray.cluster_resources().get("GPU") else 0,
            "runtime_env": {"env_vars": variables},
        }
        self._stored: dict[int, tuple[Any, Any]] = {}

    def _start(self) -> None:
        is_chosen = _USAGE_REPORTS in os.environ
        os.environ.setdefault(_USAGE_REPORTS, "0")  # no usage reports
        try:
            self._ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        finally:
            if not is_chosen:
                os.environ.pop(_USAGE_REPORTS, None)

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Run a call as a task. Cancelling the future ends the task.

        The future raises the exception of the call, or `BrokenExecutor` if the process
        died.

        An argument used in several calls is sent once.
        """
        task = self._ray.remote(fn).options(**self._options)
        result = task.remote(*map(self._reference, args), **kwargs)
        future: Future[Any] = Future()

        def end(done: Future[Any]) -> None:
            if done.cancelled():
                self._ray.cancel(result, force=True)

        future.add_done_callback(end)
        result.future().add_done_callback(partial(self._hand_over, future))
        return future

    def _hand_over(self, future: Future[Any], done: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        error: Any = done.exception()
        if error is None:
            future.set_result(done.result())
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            # Raise the original error, since the text of Ray's error is a colored
            # traceback.
            error.cause.__cause__ = error
            future.set_exception(error.cause)
        else:
            future.set_exception(BrokenExecutor(str(error)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as in the base class
        """Free the sent arguments, and shut down a local cluster."""
        del wait, cancel_futures
        self._stored.clear()
        if self._is_own:
            self._ray.shutdown()

    def _reference(self, value: Any) -> Any:
        if id(value) not in self._stored:
            # The value is kept too, so that its id stays unique.
            self._stored[id(value)] = value, self._ray.put(value)
        return self._stored[id(value)][1]
