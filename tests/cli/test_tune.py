"""`kerasmem tune`: a table of options, and everything in it as JSON."""

import pytest

from kerasmem.extras.tune import measure
from kerasmem.records import Tuning, VariantFigures

pytestmark = pytest.mark.one_backend

FIGURES = {
    "peak_bytes": 3 << 20,
    "peak_low_bytes": 2 << 20,
    "peak_source": "measured",
    "first_step_ms": 1500.0,
    "step_ms": 20.0,
    "step_low_ms": 18.0,
    "step_high_ms": 26.0,
    "steps": 7,
    "samples_per_second": 800.0,
}


@pytest.fixture
def jobs(monkeypatch):
    """What the children were asked; they answer with known figures, and some fail."""
    asked = []

    def run(_, job, **__):
        asked.append(job)
        if job["steps_per_update"] > 1:
            return {"reason": "out of memory: [no room]"}
        return FIGURES

    monkeypatch.setattr(measure, "run_in_child", run)
    return asked


def test_json_holds_the_whole_record(folder, kerasmem, jobs, backend):
    call = kerasmem("tune model.keras --batch-size 16 --only accumulation --json")
    found = call.json
    assert set(found) == {"model", *Tuning.__dataclass_fields__}
    fields = set(VariantFigures.__dataclass_fields__)
    assert all(set(variant) == fields for variant in found["variants"])
    ran, *failed = found["variants"]
    twice = FIGURES | {"steps": 14}
    assert {name: ran[name] for name in twice} == twice
    assert (ran["name"], ran["on_front"], ran["reason"]) == ("as compiled", True, "")
    assert [v["steps_per_update"] for v in failed] == [2, 4]
    assert {variant["reason"] for variant in failed} == {"out of memory: [no room]"}
    assert (found["backend"], found["batch_size"]) == (backend, 16)
    assert [job["batch_size"] for job in jobs] == [16, 8, 4, 16]
    assert "3 of 4: accumulation, 4 batches" in call.err


def test_the_table_tells_what_ran_what_did_not_and_what_to_do(
    folder, kerasmem, jobs, backend
):
    call = kerasmem("tune model.keras --batch-size 16 --only accumulation")
    assert call.code == 0
    lines = " ".join(call.out.split())
    for text in (
        "as compiled │ 2.00 MiB to 3.00 MiB │ 20.0 ms │ 18.0 ms to 26.0 ms │ 1.50 s │",
        "accumulation, 4 batches did not run: out of memory: [no room]",
        "As compiled ran twice; the times differ by 0.0 %.",
        "Keep the current options: no other is faster beyond the spread of times.",
    ):
        assert text in lines


def test_a_model_without_a_loss_trains_with_the_one_named(
    folder, kerasmem, new_network, jobs
):
    new_network(compiled=False).save("plain.keras")
    line = "tune plain.keras --loss mse --optimizer sgd --only accumulation --json"
    assert kerasmem(line).code == 0
    assert jobs[0]["model"]["compile"]["loss"] == "mse"
    assert jobs[0]["model"]["optimizer"]["class_name"] == "SGD"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("plain.keras", "not compiled. Next: pass --loss NAME, and --optimizer"),
        ("plain.keras --loss nothing", "Unknown Keras loss."),
        ("model.keras --optimizer nothing", "Received: optimizer='nothing'"),
        ("model.keras --batch-size 0", "expected a whole number from 1"),
        ("model.keras --only turbo", "Received: only='turbo'"),
        ("model.keras --input-shape 7x", "expected whole numbers, such as 128,64"),
        ("model.keras --input-shape 7", "The input shape does not fit the model"),
        ("missing.keras", "There is no file 'missing.keras'"),
    ],
)
def test_wrong_input_is_one_line_and_code_two(
    folder, kerasmem, new_network, jobs, options, text
):
    new_network(compiled=False).save("plain.keras")
    call = kerasmem(f"tune {options}")
    assert call.code == 2
    assert text in call.err
    assert call.err.count("\n") == 1
