"""MLflow and W&B for tests: the installed ones, else what stands in for them.

They bring some sixty packages, so the suite does not install them. What stands in has
the functions that kerasmem calls, with their names and arguments, and remembers. With
`pip install mlflow wandb` the same tests run against a store of SQLite and W&B's
offline mode: `python -m pytest -W default tests/report/test_trackers.py`.
"""

import importlib.util
import json
import os
import re
import struct
import sys
import time
from collections import Counter
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace


def is_installed(name):
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def _stand_in(name, **members):
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, origin="a stand-in")
    vars(module).update(members)
    return module


class Metric:
    def __init__(self, key, value, timestamp, step):
        assert isinstance(timestamp, int)
        assert isinstance(step, int)
        self.key, self.value, self.timestamp, self.step = key, value, timestamp, step


class Client:
    """MLflow's client; `runs` is the store."""

    runs: list

    def get_experiment_by_name(self, name):
        names = [run.experiment for run in self.runs]
        return SimpleNamespace(experiment_id=name) if name in names else None

    def create_experiment(self, name):
        assert self.get_experiment_by_name(name) is None
        return name

    def create_run(self, experiment_id, run_name=None):
        number = f"run{len(self.runs)}"
        info = SimpleNamespace(run_id=number, run_name=run_name, status="RUNNING")
        run = SimpleNamespace(experiment=experiment_id, info=info, metrics=[], files={})
        self.runs.append(run)
        return run

    def log_batch(self, run_id, metrics=()):
        assert len(metrics) <= 1000
        assert all(re.fullmatch(r"[\w\-. /]+", metric.key) for metric in metrics)
        self.get_run(run_id).metrics.extend(metrics)

    def log_artifact(self, run_id, local_path):
        file = Path(local_path)
        self.get_run(run_id).files[file.name] = file.read_bytes()

    def get_run(self, run_id):
        return next(run for run in self.runs if run.info.run_id == run_id)

    def search_runs(self, experiment_ids):
        return [run for run in self.runs if run.experiment in experiment_ids]

    def get_metric_history(self, run_id, key):
        return [m for m in self.get_run(run_id).metrics if m.key == key]

    def list_artifacts(self, run_id):
        return [SimpleNamespace(path=name) for name in self.get_run(run_id).files]


def mlflow_stand_in():
    """Return a module with a store of its own."""
    client = type("MlflowClient", (Client,), {"runs": []})
    active = []

    @contextmanager
    def start_run(experiment_id="Default", run_name=None):
        number = os.environ.pop("MLFLOW_RUN_ID", None)
        known = client().get_run(number) if number else None
        run = known or client().create_run(experiment_id, run_name)
        run.info.run_name = run_name or run.info.run_name
        active.append(run)
        try:
            yield run
        except BaseException:
            run.info.status = "FAILED"
            raise
        else:
            run.info.status = "FINISHED"
        finally:
            active.clear()

    return _stand_in(
        "mlflow",
        MlflowClient=client,
        entities=SimpleNamespace(Metric=Metric),
        start_run=start_run,
        active_run=lambda: active[-1] if active else None,
        end_run=active.clear,
    )


def wandb_stand_in():
    """Return a module that remembers its runs in `.runs`."""

    class Run:
        def __init__(self, project, name):
            self.project, self.name, self.exit_code = project, name, None
            self.history, self.axes, self.files = [], {}, []

        def define_metric(self, name, step_metric=None, hidden=None):
            self.axes[name] = step_metric

        def log(self, data):
            self.history.append(data)

        def log_artifact(self, artifact_or_path, name=None, type=None):  # noqa: A002
            assert Path(artifact_or_path).is_file()
            assert re.fullmatch(r"[a-zA-Z0-9_\-.]+", name)  # or W&B raises
            self.files.append((name, type))

        def __enter__(self):
            return self

        def __exit__(self, kind, *_):
            module.run, self.exit_code = None, 1 if kind else 0

    def init(project=None, name=None):
        module.run = Run(project, name)
        module.runs.append(module.run)
        return module.run

    module = _stand_in("wandb", init=init, run=None, runs=[])
    return module


def _records(content):
    """Yield the records of a file of LevelDB's log format, behind W&B's 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(content):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def _written_offline(folder):
    """Return the records of W&B below a folder when its own process has ended."""
    from wandb.proto import wandb_internal_pb2

    (file,) = Path(folder).glob("wandb/offline-run-*/run-*.wandb")
    for _ in range(100):
        contents = _records(file.read_bytes())
        records = [wandb_internal_pb2.Record.FromString(data) for data in contents]
        if records and records[-1].HasField("exit"):
            break
        time.sleep(0.1)
    return records


def wandb_history(folder):
    """Return the rows that W&B wrote offline below a folder, and its artifacts."""
    rows, files = [], []
    for record in _written_offline(folder):
        if record.HasField("history"):
            items = record.history.item
            rows.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                }
            )
        if record.HasField("artifact"):
            files.append((record.artifact.name, record.artifact.type))
        if record.HasField("request") and record.request.HasField("log_artifact"):
            artifact = record.request.log_artifact.artifact
            files.append((artifact.name, artifact.type))
    return rows, files


def points(rows, axes=("kerasmem/epoch", "kerasmem/batch")):
    """Return how often each (tag, step, value) stands in rows of W&B."""
    found = Counter()
    for row in rows:
        (axis,) = (name for name in axes if name in row)
        own = {tag for tag in row if tag != axis and not tag.startswith("_")}
        found.update((tag, row[axis], row[tag]) for tag in own)
    return found


def install(monkeypatch, name):
    """Return the installed package, or put what stands in for it in its place."""
    if is_installed(name):
        return importlib.import_module(name)
    module = {"mlflow": mlflow_stand_in, "wandb": wandb_stand_in}[name]()
    monkeypatch.setitem(sys.modules, name, module)
    return module
