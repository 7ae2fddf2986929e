"""A run in the experiment trackers that people have: TensorBoard, MLflow, W&B."""

import importlib
import importlib.util
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kerasmem.backends.tensorflow_files import write_events
from kerasmem.errors import ConfigError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.files.read_run import read_run
from kerasmem.records import Run, Scalar
from kerasmem.report.run import write_run_page
from kerasmem.report.run.scalars import run_scalars

_MOST_METRICS = 1000
"""Of one request, by MLflow's REST API."""
_MOST_LETTERS = 250
_AXES = {True: "kerasmem/batch", False: "kerasmem/epoch"}


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
    options = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
    targets = {name: target for name, target in options.items() if target is not None}
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
    for name in sorted(targets.keys() - {"tensorboard"}):
        spec = importlib.util.find_spec(name)
        # W&B leaves a folder of its own name, which Python takes for a package.
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"A run is logged by the package {name}. Expected: it is installed "
                f"(pip install kerasmem[{name}]). Received: no module {name!r}."
            )


def logged(run: Run, page: Path, name: str, target: str | Path) -> int:
    """Log a run and its page to one tracker; return the number of scalars.

    Args:
        run: what was recorded.
        page: the file that was made of it.
        name: of `TRACKERS`.
        target: folder, experiment or project.
    """
    scalars = run_scalars(run)
    TRACKERS[name](scalars, page, str(target), run.name)
    return sum(map(len, scalars.values()))


Scalars = Mapping[int, Sequence[Scalar]]
"""The points of each process, by its index."""


def _to_tensorboard(scalars: Scalars, page: Path, target: str, name: str) -> None:
    """Write an event file a process; those of process 1 lie in a folder below."""
    del page, name  # TensorBoard shows no files, and the folder's name is the run's
    for process, own in scalars.items():
        folder = Path(target, f"process-{process}" if process else "")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"There can be no folder {str(folder)!r}: {error.strerror or error}."
            ) from error
        file = folder / f"events.out.tfevents.{int(time.time())}.kerasmem"
        with replacing(file) as temporary:
            write_events(temporary, own)


def _to_mlflow(scalars: Scalars, page: Path, target: str, name: str) -> None:
    """Log to the active run, else to a new one, by a client: none becomes active."""
    mlflow: Any = importlib.import_module("mlflow")
    client, run = mlflow.MlflowClient(), mlflow.active_run()
    is_own = run is None
    if is_own:
        known = client.get_experiment_by_name(target)
        number = known.experiment_id if known else client.create_experiment(target)
        run = client.create_run(number, run_name=name)
    number = run.info.run_id

    def end(status: str) -> None:
        if is_own:
            client.set_terminated(number, status=status)

    with _ending(end, "FINISHED", "FAILED"):
        metrics = [
            mlflow.entities.Metric(
                _allowed(_tag(one, process)), one.value, round(1e3 * one.time), one.step
            )
            for process, own in scalars.items()
            for one in own
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(number, metrics=metrics[start : start + _MOST_METRICS])
        client.log_artifact(number, str(page))


def _to_wandb(scalars: Scalars, page: Path, target: str, name: str) -> None:
    """Log to the active run, else to a new one.

    A run of W&B has one counter of steps that only rises. So figures stand over two
    axes of their own, `kerasmem/epoch` and `kerasmem/batch`.
    """
    wandb: Any = importlib.import_module("wandb")
    is_own = wandb.run is None
    run = wandb.run or wandb.init(project=target, name=name)

    def end(code: int) -> None:
        if is_own:
            run.finish(exit_code=code)

    with _ending(end, 0, 1):
        for axis in _AXES.values():
            run.define_metric(axis, hidden=True)
        for process, own in scalars.items():
            for tag, axis in {_tag(one, process): _axis(one) for one in own}.items():
                run.define_metric(tag, step_metric=axis)
            for (axis, step), together in groupby(sorted(own, key=_place), key=_place):
                values = {_tag(one, process): one.value for one in together}
                run.log({axis: step, **values})
        artifact = re.sub(r"[^\w.-]", "_", page.stem, flags=re.ASCII)
        run.log_artifact(str(page), name=artifact, type="report")


TRACKERS: Mapping[str, Callable[[Scalars, Path, str, str], None]] = {
    "tensorboard": _to_tensorboard,
    "mlflow": _to_mlflow,
    "wandb": _to_wandb,
}
"""By the name of their package, which is the keyword and the option too."""


@contextmanager
def _ending(end: Callable[[Any], None], good: Any, bad: Any) -> Iterator[None]:
    """Return a scope that ends a run, as one that failed after an error."""
    try:
        yield
    except BaseException:
        end(bad)
        raise
    end(good)


def _allowed(tag: str) -> str:
    """Return a metric name that MLflow accepts: a short path of plain characters."""
    parts = re.sub(r"[^\w\-. /]", "_", tag, flags=re.ASCII).split("/")
    name = "/".join(part for part in parts if part not in ("", ".", ".."))
    if len(name) <= _MOST_LETTERS:
        return name or "_"
    return f"{name[: _MOST_LETTERS - 9].rstrip('./')}-{zlib.crc32(name.encode()):08x}"


def _tag(scalar: Scalar, process: int) -> str:
    """Return the name of a series of one process, where all lie in one run."""
    return f"process-{process}/{scalar.tag}" if process else scalar.tag


def _axis(scalar: Scalar) -> str:
    return _AXES[scalar.tag.startswith("memory_by_batch/")]


def _place(scalar: Scalar) -> tuple[str, int]:
    return _axis(scalar), scalar.step
