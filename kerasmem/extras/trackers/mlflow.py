"""A run in MLflow, through its client: nothing becomes the active run or experiment."""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kerasmem.extras.trackers.tracker import Tracker, of_process
from kerasmem.records import Scalar

_MOST_METRICS = 1000
"""Of one request, by MLflow's REST API."""
_MOST_LETTERS = 250


class MlflowTracker(Tracker):
    """Logs metrics and artifacts into the active run, else into a new one.

    Args:
        target: name of the experiment of a new run, made if it is not there.
        name: of a new run.
    """

    package = "mlflow"

    def __init__(self, target: str, name: str) -> None:
        mlflow = self.library()
        self._metric = mlflow.entities.Metric
        self._client = mlflow.MlflowClient()
        active = mlflow.active_run()
        self._is_own = active is None
        self._run: str = (active or self._new_run(target, name)).info.run_id

    def _new_run(self, experiment: str, name: str) -> Any:
        known = self._client.get_experiment_by_name(experiment)
        number = (
            self._client.create_experiment(experiment)
            if known is None
            else known.experiment_id
        )
        return self._client.create_run(number, run_name=name)

    def log_scalars(self, scalars: Sequence[Scalar], process: int) -> None:
        """Log metrics with the time at which they were measured."""
        metrics = [
            self._metric(
                _allowed(of_process(one.tag, process)),
                one.value,
                round(1000 * one.time),
                one.step,
            )
            for one in scalars
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            part = metrics[start : start + _MOST_METRICS]
            self._client.log_batch(self._run, metrics=part)

    def log_artifact(self, path: Path) -> None:
        """Log a file as an artifact of the run."""
        self._client.log_artifact(self._run, str(path))

    def close(self, *, complete: bool) -> None:
        """End a run that this tracker has made."""
        if self._is_own:
            status = "FINISHED" if complete else "FAILED"
            self._client.set_terminated(self._run, status=status)


def _allowed(tag: str) -> str:
    """Return a metric name that MLflow accepts: a short path of plain characters."""
    parts = re.sub(r"[^\w\-. /]", "_", tag, flags=re.ASCII).split("/")
    name = "/".join(part for part in parts if part not in ("", ".", ".."))
    if len(name) <= _MOST_LETTERS:
        return name or "_"
    return f"{name[: _MOST_LETTERS - 9].rstrip('./')}-{zlib.crc32(name.encode()):08x}"
