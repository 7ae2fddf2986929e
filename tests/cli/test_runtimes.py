"""`kerasmem runtimes`: a table, the reasons, the advice, and all of it as JSON."""

from dataclasses import replace
from pathlib import Path

import keras
import pytest

from kerasmem.errors import ModelError
from kerasmem.extras.litert import runtimes
from kerasmem.extras.litert.forms import FORMS
from kerasmem.records import RuntimeComparison

KERAS, INT8, _, _, STATIC = FORMS


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """What needs no process of its own."""
    monkeypatch.setattr(runtimes, "FORMS", (KERAS, INT8, STATIC))
    resident = {"process_bytes": 5 << 20, "peak_bytes": 3 << 20}
    monkeypatch.setattr(runtimes, "_resident", lambda *_: resident)


def test_json_holds_the_whole_record(folder, kerasmem, backend):
    call = kerasmem("runtimes model.keras --batch-size 4 --json")
    found = call.json
    assert set(found) == set(RuntimeComparison.__dataclass_fields__)
    assert (found["model"], found["backend"]) == ("model.keras", backend)
    assert [r["name"] for r in found["runtimes"]] == [
        KERAS.name,
        INT8.name,
        STATIC.name,
    ]
    assert [t["batch_size"] for t in found["runtimes"][1]["times"]] == [4]
    assert (found["with_data"], found["samples"], found["threads"]) == (False, 4, 1)
    assert found["advice"][-1]["name"] == INT8.name
    assert found["runtimes"][0]["file_bytes"] == Path("model.keras").stat().st_size


@pytest.mark.one_backend
def test_the_file_of_keras_counts_without_its_optimizer(
    folder, kerasmem, new_network, monkeypatch
):
    monkeypatch.setattr(runtimes, "FORMS", (KERAS,))
    model = new_network(2000)
    model.optimizer.build(model.trainable_variables)
    model.save("trained.keras")
    call = kerasmem("runtimes trained.keras --batch-size 4 --json")
    (row,) = call.json["runtimes"]
    weight_bytes = 4 * model.count_params()
    assert Path("trained.keras").stat().st_size > 3 * weight_bytes
    assert weight_bytes <= row["file_bytes"] < 1.5 * weight_bytes


@pytest.mark.one_backend
def test_data_goes_to_the_comparison(folder, kerasmem, monkeypatch):
    monkeypatch.setattr(runtimes, "FORMS", (KERAS,))
    found = kerasmem("runtimes model.keras --data split.npz --batch-size 9 --json").json
    assert (found["with_data"], found["samples"]) == (True, 9)


@pytest.mark.one_backend
def test_a_person_reads_figures_reasons_and_advice(folder, kerasmem):
    call = kerasmem("runtimes model.keras --threads 2")
    assert call.code == 0
    assert "batch of 1" in call.out
    assert "batch of 32" in call.out
    assert "5.00 MiB" in call.out
    assert "LiteRT, int8-static was not created: The form needs samples" in call.out
    text = " ".join(call.out.split())
    assert "LiteRT on the CPU with 2 threads" in text
    assert "32 random samples" in text
    assert "Smallest file: Keras, int8 weights" in text
    assert 'Keras, int8 weights: km.compress(model, km.Quantize("int8")).model' in text


@pytest.mark.one_backend
def test_a_tolerance_and_lengths_go_to_the_files(folder, kerasmem, monkeypatch):
    asked = []

    def make(given):
        asked.append(given)
        raise ModelError("none")

    monkeypatch.setattr(runtimes, "FORMS", (KERAS, replace(STATIC, make=make)))
    inputs = keras.Input((None, 3), name="open")
    keras.Model(inputs, keras.layers.Dense(2)(inputs)).save("open.keras")
    call = kerasmem("runtimes open.keras --tolerance 0.4 --input-shape 5,3")
    assert call.code == 0
    (given,) = asked
    assert given.files == {"tolerance": 0.4, "input_shape": [(5, 3)]}
    assert given.batch[0].shape == (32, 5, 3)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("runtimes missing.keras", "missing.keras"),
        ("runtimes model.keras --batch-size 0", "from 1"),
        ("runtimes model.keras --data missing.npz", "missing.npz"),
        ("runtimes model.keras --tolerance -1", "0 or more"),
        (
            "runtimes model.keras --input-shape 7",
            "the shape (6,) without the batch axis and with a length for every None. "
            "Received: input_shape=(7,)",
        ),
    ],
)
def test_bad_input_is_one_line(folder, kerasmem, line, text):
    call = kerasmem(line)
    assert call.code == 2
    assert text in call.err.strip().splitlines()[-1]
