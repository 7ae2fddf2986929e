"""A run in Weights & Biases."""

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from kerasmem.extras.trackers.tracker import Tracker, of_process
from kerasmem.records import Scalar

_AXES = {True: "kerasmem/batch", False: "kerasmem/epoch"}


class WandbTracker(Tracker):
    """Logs metrics and artifacts into the active run, else into a new one.

    A run of W&B has one counter of steps that only rises. So figures stand over two
    axes of their own, `kerasmem/epoch` and `kerasmem/batch`.

    Args:
        target: name of the project of a new run.
        name: of a new run.
    """

    package = "wandb"

    def __init__(self, target: str, name: str) -> None:
        wandb = self.library()
        self._is_own = wandb.run is None
        self._run = wandb.run or wandb.init(project=target, name=name)
        for axis in _AXES.values():
            self._run.define_metric(axis, hidden=True)

    def log_scalars(self, scalars: Sequence[Scalar], process: int) -> None:
        """Log metrics, those of one epoch or batch at a time."""
        axes = {scalar.tag: _axis(scalar) for scalar in scalars}
        for tag, axis in axes.items():
            self._run.define_metric(of_process(tag, process), step_metric=axis)
        ordered = sorted(scalars, key=_place)
        for (axis, step), together in groupby(ordered, key=_place):
            values = {of_process(one.tag, process): one.value for one in together}
            self._run.log({axis: step, **values})

    def log_artifact(self, path: Path) -> None:
        """Log a file as an artifact of the run."""
        self._run.log_artifact(
            str(path),
            name=re.sub(r"[^\w.-]", "_", path.stem, flags=re.ASCII),
            type="report",
        )

    def close(self, *, complete: bool) -> None:
        """End a run that this tracker has made."""
        if self._is_own:
            self._run.finish(exit_code=0 if complete else 1)


def _axis(scalar: Scalar) -> str:
    return _AXES[scalar.tag.startswith("memory_by_batch/")]


def _place(scalar: Scalar) -> tuple[str, int]:
    return _axis(scalar), scalar.step
