"""Two JAX processes make the model that one makes, and what they cannot do is said."""

import time
from concurrent.futures import ProcessPoolExecutor

import pytest

import kerasmem as km
from kerasmem import backends
from kerasmem.compression.measure import latencies
from kerasmem.errors import ConfigError
from tests.benchmarks.bench_processes import compressed, furthest, network, run, samples


@pytest.fixture
def beside_another(monkeypatch):
    """Pretend that there is another process."""
    adapter = type(backends.current())
    monkeypatch.setattr(adapter, "processes", lambda *_: (0, 2))


def test_a_recipe_gives_the_model_of_one_process(tmp_path):
    here = compressed()
    for model, metrics in run(2, tmp_path):
        assert furthest(model, here.model) < 1e-6
        assert metrics == pytest.approx(here.report.after.metrics, abs=1e-5)


@pytest.mark.usefixtures("beside_another")
def test_every_process_predicts_equally_often(monkeypatch):
    model, calls = network(), []
    monkeypatch.setattr(model, "predict_on_batch", calls.append)
    often = []
    for seconds in (0, 2):
        calls.clear()
        monkeypatch.setattr(time, "perf_counter", lambda s=seconds: s * len(calls))
        latencies([model], samples(), 32)
        often.append(len(calls))
    assert often == [7, 7]


@pytest.mark.usefixtures("beside_another")
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("time_budget", {"time_budget": 60}),
        ("latency_ms", {"target": {"latency_ms": 1.0}}),
        ("parallel", {"parallel": ProcessPoolExecutor(1)}),
    ],
)
def test_what_each_process_would_decide_by_itself_is_refused(name, own):
    (x, y), request = samples(), {"target": {"weight_bytes": 4000}} | own
    judged = {"data": (x, y), "validation_data": (x + 0, y)}
    with pytest.raises(ConfigError, match=f"Received: {name}, 2 processes"):
        km.compress(network(), verbose=0, **judged, **request)
