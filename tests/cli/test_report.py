"""`kerasmem report` makes a page of what a run left behind."""

import importlib.util
from pathlib import Path

import keras
import pytest

import kerasmem as km
from tests.report.packed import packed
from tests.report.runs import small_run


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """A real run's folder, in the current folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    layers = [keras.Input((3,)), keras.layers.Dense(2, name="only")]
    model = keras.Sequential(layers, name="run_me")
    model.compile("sgd", "mse", jit_compile=False)
    watch = km.callbacks.MemoryMonitor(log_dir=folder)
    flow = km.callbacks.GradientMonitor(every=1, log_dir=folder)
    x, y = keras.ops.ones((8, 3)), keras.ops.zeros((8, 2))
    model.fit(x, y, batch_size=4, epochs=2, callbacks=[watch, flow], verbose=0)
    return watch, flow


# Not every backend has a device series on a CPU; a monitor says so.
@pytest.mark.filterwarnings("ignore:.*device values are missing")
def test_a_real_run_becomes_a_page(run_dir, kerasmem):
    watch, flow = run_dir
    found = kerasmem("report run -o page.html --json").json
    assert (found["memory_readings"], found["gradient_epochs"]) == (2, 2)
    page = Path("page.html").read_text(encoding="utf-8")
    assert found["page_bytes"] == len(page.encode())
    shown = packed(page)
    panel = next(p for p in shown["panels"] if p["title"] == "Host memory")
    peak = next(line for line in panel["lines"] if line["name"] == "peak")
    assert peak["y"] == [record.host.peak_bytes for record in watch.records]
    norms = [record.norm for record in flow.records]
    (mean,) = (
        line
        for panel in shown["panels"]
        for line in panel["lines"]
        if (panel["unit"], line["name"]) == ("log", "mean")
    )
    assert mean["y"] == pytest.approx(norms, rel=2e-4)
    paths = [v.path.removeprefix("run_me/") for v in flow.records[0].variables]
    assert shown["flow"]["paths"] == paths == ["only/kernel", "only/bias"]
    loss = next(p for p in shown["panels"] if p["title"] == "Loss")
    assert loss["lines"][0]["y"] == pytest.approx([r.loss for r in watch.records])
    assert "<h1>run</h1>" in page


@pytest.mark.one_backend
def test_the_headline_is_told_in_the_terminal(tmp_path, monkeypatch, kerasmem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    run = small_run()
    (tmp_path / "run" / "findings.jsonl").write_text(run.findings[0].to_json() + "\n")
    (tmp_path / "run" / "memory.jsonl").write_text(
        "".join(f"{record.to_json()}\n" for record in run.memory) + '{"epo'
    )
    call = kerasmem("report run -o page.html --tensorboard board")
    assert call.code == 0
    for text in ("Device peak", "1.27 GiB", "leak", "page: page.html", "TensorBoard:"):
        assert text in call.out
    assert "The last line of memory.jsonl is cut off" in call.err
    assert len(list((tmp_path / "board").iterdir())) == 1
    lines = " ".join(call.out.split())
    assert "tensorboard --logdir board" in lines
    has_viewer = importlib.util.find_spec("tensorboard") is not None
    assert ("pip install kerasmem[tensorboard]" in lines) is not has_viewer


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("report missing -o page.html", "There is no folder here"),
        ("report . -o page.html", "folder contains no records of a monitor"),
        ("report . -o page.txt", "must end in .html"),
        ("report . -o nowhere/page.html", "There is no folder 'nowhere'"),
        ("report .", "required: -o/--output"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    tmp_path, monkeypatch, refused, line, message
):
    monkeypatch.chdir(tmp_path)
    assert message in refused(line)
