"""`kerasmem tune`: a table of options, and everything in it as JSON."""

from types import SimpleNamespace

import pytest

from kerasmem.errors import ModelError
from kerasmem.extras.tune import measure
from kerasmem.memory.estimate import METHODS
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
        return FIGURES | {"not_counted": "this is a test"}

    monkeypatch.setattr(measure, "run_in_child", run)
    return asked


def odd(layer, dimension, size, next_16_bit, next_tf32):
    return {
        "layer": layer,
        "dimension": dimension,
        "size": size,
        "next_16_bit": next_16_bit,
        "next_tf32": next_tf32,
    }


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
    assert found["odd_sizes"] == [
        odd("features", "features", 6, 8, 8),
        odd("classes", "units", 3, 8, 4),
    ]
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
        "Retracing: not counted, ",
        "classes │ units │ 3 │ 8 │ 4",
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


@pytest.fixture
def plans(monkeypatch):
    """What was planned; peaks go with the batch, and 16 bits have none."""
    asked = []

    def plan(request):
        asked.append(request)
        if request.dtype_policy == "mixed_float16":
            raise ModelError("It calls a library. Received: this.")
        return SimpleNamespace(peak_bytes=request.batch_size << 20)

    monkeypatch.setitem(METHODS, "plan", plan)
    return asked


def test_for_a_card_that_is_not_here_peaks_are_planned(
    folder, kerasmem, plans, monkeypatch, backend
):
    monkeypatch.setattr(measure, "run_in_child", None)
    call = kerasmem("tune model.keras --batch-size 16 --device h100")
    assert call.code == 0
    lines = " ".join(call.out.split())
    for text in (
        "as compiled │ 16.0 MiB est. │ │",
        "accumulation, 4 batches │ 4.00 MiB est. │ │",
        "mixed_float16 did not run: It calls a library. Received: this.",
        "Peaks from XLA's compilation plans for h100: nothing ran.",
        "If memory is short, use accumulation, 4 batches (batch_size=4 and an "
        "optimizer with gradient_accumulation_steps=4): a peak of 4.00 MiB (estimated) "
        "instead of 16.0 MiB (estimated).",
    ):
        assert text in lines
    assert {(one.card, one.jit_compile) for one in plans} == {("h100", True)}
    assert "jit" not in call.out.partition("Peaks from")[0].partition("as compiled")[2]


def test_only_what_is_asked_for_is_planned(folder, kerasmem, plans, refused):
    line = "tune model.keras --batch-size 16 --device h100 --only accumulation"
    found = kerasmem(f"{line} --json").json
    assert [v["batch_size"] for v in found["variants"]] == [16, 8, 4]
    assert {v["peak_source"] for v in found["variants"]} == {"plan"}
    assert (found["device"], found["jit_compile"]) == ("h100", True)
    assert "must be a substring of one of" in refused(
        line.replace("accumulation", "jit")
    )
