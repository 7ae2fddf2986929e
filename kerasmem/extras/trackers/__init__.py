"""A run in the experiment trackers that people have: TensorBoard, MLflow, W&B."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kerasmem.errors import ConfigError
from kerasmem.extras.trackers.mlflow import MlflowTracker
from kerasmem.extras.trackers.tensorboard import TensorBoardTracker
from kerasmem.extras.trackers.tracker import Tracker
from kerasmem.extras.trackers.wandb import WandbTracker
from kerasmem.files.read_run import read_run
from kerasmem.records import Run
from kerasmem.report.run import write_run_page
from kerasmem.report.run.scalars import run_scalars

__all__ = ["TRACKERS", "Tracker", "check_trackers", "log_run", "logged"]

TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}
"""By the name of their package, which is the keyword and the option too."""


def log_run(
    log_dir: str | Path,
    *,
    tensorboard: str | Path | None = None,
    mlflow: str | None = None,
    wandb: str | None = None,
) -> dict[str, int]:
    """Log what the monitors of a run recorded to TensorBoard, MLflow or W&B.

    Every figure goes there at its step: of each device, batch, process and variable.
    MLflow and W&B get the page of the run too. If a run of theirs is active in this
    process, all goes into it and it stays open, else into a new one that is named after
    the folder and closed. Server and login are theirs: `MLFLOW_TRACKING_URI`,
    `WANDB_MODE` and so on.

    The series in `logs` need none of this: trackers' own Keras callbacks see them if
    they are listed behind the monitors.

    Args:
        log_dir: the folder that the monitors were given.
        tensorboard: folder for an event file, made if it is not there; those of process
            1 lie in `process-1` of it. Nothing has to be installed.
        mlflow: name of an experiment, made if it is not there
            (`pip install kerasmem[mlflow]`).
        wandb: name of a project (`pip install kerasmem[wandb]`).

    Returns:
        The number of scalars by tracker.

    Raises:
        ConfigError: if no tracker is named, or the package of one is not installed.
        InputError: if there is no run in `log_dir`.
        OutputError: if an event file cannot be written.

    Example:
        >>> import kerasmem as km
        >>> try:
        ...     km.callbacks.log_run("run")
        ... except km.errors.ConfigError as error:
        ...     print(str(error)[:30])
        A tracker has to be named. Exp
    """
    named = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
    targets = {name: target for name, target in named.items() if target is not None}
    if not targets:
        raise ConfigError(
            "A tracker has to be named. Expected: tensorboard=FOLDER, "
            "mlflow=EXPERIMENT or wandb=PROJECT. Received: none of them."
        )
    check_trackers(targets)
    run = read_run(log_dir)
    with TemporaryDirectory() as folder:
        page = Path(folder) / "kerasmem.html"
        write_run_page(run, page)
        return {
            name: logged(run, page, name, target) for name, target in targets.items()
        }


def check_trackers(targets: Mapping[str, Any]) -> None:
    """Raise unless the packages of trackers are installed.

    Raises:
        ConfigError: if one is not.
    """
    for name in targets:
        TRACKERS[name].check()


def logged(run: Run, page: Path, name: str, target: str | Path) -> int:
    """Log a run and its page to one tracker; return the number of scalars.

    Args:
        run: what was recorded.
        page: the file that was made of it.
        name: of `TRACKERS`.
        target: folder, experiment or project.
    """
    scalars = run_scalars(run)
    with _open(name, str(target), run.name) as tracker:
        for process, own in scalars.items():
            tracker.log_scalars(own, process)
        tracker.log_artifact(page)
    return sum(map(len, scalars.values()))


@contextmanager
def _open(name: str, target: str, run: str) -> Iterator[Tracker]:
    tracker = TRACKERS[name](target, run)
    try:
        yield tracker
    except BaseException:
        tracker.close(complete=False)
        raise
    tracker.close(complete=True)
