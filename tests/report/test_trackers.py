"""MLflow and W&B get every figure at its step, and the page of the run."""

import importlib.util
import json
import posixpath
import re
from collections import Counter

import pytest

from kerasmem.cli.main import main
from kerasmem.errors import ConfigError
from kerasmem.extras.trackers import _allowed as mlflow_name
from kerasmem.extras.trackers import check_trackers, run_scalars
from kerasmem.records import HostReading, MemoryRecord
from kerasmem.units import MIB
from tests.report import tracker_libraries
from tests.report.runs import gradient_records, memory_records

pytestmark = pytest.mark.one_backend

READINGS = tuple(
    MemoryRecord(epoch, batch, (), HostReading(MIB, 3 * MIB, "kernel"), time=9.25)
    for epoch in range(2)
    for batch in (1, 3, None)
)
RECORDS = {
    "memory": (*READINGS, *memory_records(2, process=1)),
    "gradients": gradient_records(3, 4),
}


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """A run of two processes, in the current folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "night"
    folder.mkdir()
    for stem, records in RECORDS.items():
        lines = (record.to_json() + "\n" for record in records)
        (folder / f"{stem}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def mlflow(monkeypatch, tmp_path):
    library = tracker_libraries.install(monkeypatch, "mlflow")
    if library.__spec__.loader:
        library.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    yield library
    library.end_run()


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return tracker_libraries.install(monkeypatch, "wandb")


@pytest.fixture
def report(capsys):
    """Run `kerasmem report` in this process, where the libraries are."""

    def call(options):
        command = ["report", "night", "-o", "page.html", "--json", *options.split()]
        assert main(command) == 0
        return json.loads(capsys.readouterr().out)

    return call


def expected(run_dir):
    """How often each (tag, step, value) was recorded, all processes in one run."""
    scalars = run_scalars(km_run(run_dir))
    return Counter(
        (f"process-{p}/{s.tag}" if p else s.tag, s.step, s.value)
        for p, own in scalars.items()
        for s in own
    )


def km_run(run_dir):
    from kerasmem.files.read_run import read_run

    return read_run(run_dir)


def metrics_of(client, run_id, tags):
    """What a run of MLflow has, under the names that were logged."""
    return Counter(
        (tag, metric.step, metric.value)
        for tag in tags
        for metric in client.get_metric_history(run_id, tag.replace(":", "_"))
    )


def test_mlflow_has_every_figure_and_the_page(run_dir, mlflow, report):
    recorded = expected(run_dir)
    assert report("--mlflow study")["scalars"] == {"mlflow": recorded.total()}
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("study")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("night", "FINISHED")
    tags = {tag for tag, _, _ in recorded}
    assert {"process-1/memory/GPU:0/peak_mib", "gradients/norm"} < tags
    assert metrics_of(client, run.info.run_id, tags) == recorded
    (norm, *_) = client.get_metric_history(run.info.run_id, "memory/host/rss_mib")
    assert norm.timestamp == 9250
    files = client.list_artifacts(run.info.run_id)
    assert [file.path for file in files] == ["page.html"]
    assert mlflow.active_run() is None


@pytest.mark.parametrize(
    "tag", ["a//b", "/a", "../a/..", ".", "", "a/./b/", "ä:b", "a/" * 300, "x" * 251]
)
def test_mlflow_takes_every_name(tag):
    # The rules of `mlflow.utils.validation`.
    name = mlflow_name(tag)
    assert re.fullmatch(r"[\w\-. /]{1,250}", name, re.ASCII)
    assert posixpath.normpath(name) == name
    assert not name.startswith(("..", "/"))
    assert name != "."


def test_long_names_in_mlflow_stay_different():
    assert mlflow_name("x" * 300 + "a") != mlflow_name("x" * 300 + "b")
    assert mlflow_name("x" * 250) == "x" * 250


def test_a_second_run_joins_the_experiment(run_dir, mlflow, report):
    for _ in range(2):
        report("--mlflow study")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("study")
    assert len(client.search_runs([experiment.experiment_id])) == 2


def test_a_run_of_mlflow_that_is_named_gets_all(run_dir, mlflow, report, monkeypatch):
    with mlflow.start_run(run_name="training") as run:
        pass
    recorded = expected(run_dir)
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    report("--mlflow study")
    client = mlflow.MlflowClient()
    tags = {tag for tag, _, _ in recorded}
    assert metrics_of(client, run.info.run_id, tags) == recorded
    assert client.get_run(run.info.run_id).info.run_name == "training"
    assert mlflow.active_run() is None


def test_a_run_that_could_not_be_logged_is_one_that_failed(
    run_dir, mlflow, monkeypatch, capsys
):
    def refuse(*_, **__):
        raise ConnectionError("gone")

    monkeypatch.setattr(mlflow.MlflowClient, "log_artifact", refuse)
    assert main(["report", "night", "-o", "page.html", "--mlflow", "study"]) == 2
    assert "gone" in capsys.readouterr().err
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("study")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"


def test_wandb_has_every_figure_over_an_axis_of_its_own(
    run_dir, wandb, tmp_path, report
):
    recorded = expected(run_dir)
    assert report("--wandb study")["scalars"] == {"wandb": recorded.total()}
    assert wandb.run is None
    if wandb.__spec__.loader:
        rows, files = tracker_libraries.wandb_history(tmp_path)
    else:
        (run,) = wandb.runs
        rows, files = run.history, run.files
        assert (run.project, run.name, run.exit_code) == ("study", "night", 0)
        assert run.axes["memory_by_batch/host/rss_mib"] == "kerasmem/batch"
        assert run.axes["gradients/norm"] == "kerasmem/epoch"
    assert tracker_libraries.points(rows) == recorded
    assert files == [("page", "report")]


def test_a_run_of_wandb_that_is_named_keeps_its_name(
    run_dir, wandb, report, monkeypatch
):
    monkeypatch.setenv("WANDB_RUN_ID", "training1")
    monkeypatch.setenv("WANDB_RESUME", "allow")
    init, names = wandb.init, []
    monkeypatch.setattr(
        wandb, "init", lambda **given: (names.append(given["name"]), init(**given))[1]
    )
    report("--wandb study")
    assert names == [None]


def test_the_command_logs_to_all_of_them(run_dir, mlflow, wandb, report):
    recorded = expected(run_dir).total()
    found = report("--tensorboard board --mlflow study --wandb mine")
    assert found["scalars"] == dict.fromkeys(
        ("tensorboard", "mlflow", "wandb"), recorded
    )


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_package_that_is_missing_is_named_with_its_extra(name, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == name else find(n, *a)
    )
    with pytest.raises(ConfigError, match=re.escape(f"(pip install kerasmem[{name}])")):
        check_trackers({name: "study"})


def test_of_two_missing_packages_the_first_by_name_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    with pytest.raises(ConfigError, match="no module 'mlflow'"):
        check_trackers({"wandb": "study", "mlflow": "study"})


def test_a_folder_that_wandb_left_is_no_package(monkeypatch, tmp_path):
    if tracker_libraries.is_installed("wandb"):
        return  # then it is found before any folder
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="no module 'wandb'"):
        check_trackers({"wandb": "study"})
