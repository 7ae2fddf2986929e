"""Tables say what was measured, and how it stands to the first model."""

import io

import keras
import pytest
from rich.console import Console

from kerasmem.graph.activations import layer_activations
from kerasmem.records import ModelFigures, WeightChange
from kerasmem.records.comparison import comparison_table, models_table
from kerasmem.records.table import terminal_table
from kerasmem.records.weights import left_alone_table, weight_table
from kerasmem.report.memory import layer_table

pytestmark = pytest.mark.one_backend

BEFORE = ModelFigures(4096, 2000, 500, 480, 800, 2.0, 32, {"accuracy": 0.9, "auc": 0.5})
AFTER = ModelFigures(1024, 500, 500, 96, 800, 4.0, 32, {"accuracy": 0.885})


def rows(**models):
    """Return the cells of each row by its label, without it."""
    return {label: cells for label, *cells in models_table(models).rows}


def printed(table):
    text = io.StringIO()
    Console(file=text, width=150).print(table)
    return text.getvalue()


@pytest.mark.parametrize(
    ("label", "before", "after", "against"),
    [
        ("file", "4.00 KiB", "1.00 KiB", "4.00x"),
        ("weights in RAM", "1.95 KiB", "500 B", "4.00x"),
        ("parameters", "500", "500", "1.00x"),
        ("nonzero parameters", "480", "96", "5.00x"),
        ("activation peak, 1 sample", "800 B", "800 B", "1.00x"),
        ("latency, batch of 32", "2.00 ms", "4.00 ms", "0.50x"),
        ("accuracy", "0.9000", "0.8850", "-0.0150"),
        ("auc", "0.5000", "-", ""),
    ],
)
def test_a_figure_stands_beside_the_first_models(label, before, after, against):
    cells = rows(before=BEFORE, after=AFTER)[label]
    assert cells[:-1] == [before, after, against]


@pytest.mark.parametrize(
    ("spread", "against"),
    [((2.0, 4.2), "0.67x"), ((1.9, 4.0), "no clear difference")],
)
def test_times_within_each_others_spread_have_no_ratio(spread, against):
    first, second = (
        ModelFigures(9, 9, 9, 9, None, ms, 32, {}, low, high)
        for ms, low, high in ((1.95, 1.9, 2.3), (2.925, *spread))
    )
    label = "latency, batch of 32: median (range of 80 % of the runs)"
    row = rows(before=first, after=second)[label]
    low, high = spread
    assert row[1] == f"2.92 ms\n({low:.2f} ms to {high:.2f} ms)"
    assert row[2] == against


def test_a_figure_that_no_model_has_is_left_out():
    assert list(rows(only=ModelFigures(9, 9, 9, 9))) == [
        "file",
        "weights in RAM",
        "parameters",
        "nonzero parameters",
    ]


def test_a_size_of_zero_has_no_ratio():
    cells = rows(a=ModelFigures(1, 0, 0, 0), b=ModelFigures(1, 0, 0, 0))
    assert cells["parameters"][2] == ""


def test_what_is_estimated_is_called_so():
    sources = {label: cells[-1] for label, cells in rows(before=BEFORE).items()}
    assert sources["activation peak, 1 sample"] == "estimated"
    assert sources["latency, batch of 32"] == sources["accuracy"] == "measured"


def test_the_table_has_a_column_of_ratios_for_every_later_model():
    text = printed(comparison_table({"old": BEFORE, "new": AFTER, "student": AFTER}))
    header, file = (
        line for line in text.splitlines() if "old" in line or "file" in line
    )
    assert header.count("vs old") == 2
    assert file.count("4.00x") == 2


def test_the_layer_table_ends_with_the_sum():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(256, name="wide"), keras.layers.Dense(1)]
    )
    lines = printed(layer_table(layer_activations(model, 2))).splitlines()
    wide = next(line for line in lines if "wide" in line)
    total = next(line for line in lines if " all " in line)
    assert "2 x 256" in wide
    assert "2.00 KiB" in wide
    assert f"{4 * 256 + 256 + 256 + 1:,}" in total


def test_the_changes_say_why_a_weight_was_skipped():
    changes = [
        WeightChange("a", "a/kernel", "prune", True, "80 % set to zero", 400, 400),
        WeightChange("a", "a/bias", "prune", False, "a bias", 40, 40),
    ]
    text = printed(terminal_table(weight_table(changes)))
    assert "80 % set to zero" in text
    assert "skipped: a bias" in text


def test_a_sum_of_which_a_part_is_unknown_is_a_lower_bound_without_shares():
    inputs = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(10, 4, name="embedding")(inputs)
    pooled = keras.layers.GlobalMaxPooling1D(name="pool")(embedded)
    layers = layer_activations(keras.Model(inputs, pooled), 10)
    lines = printed(layer_table(layers)).splitlines()

    def cells(name):
        row = next(line for line in lines if f" {name} " in line)
        return [cell.strip() for cell in row.strip("│").split("│")]

    assert cells("embedding")[3:5] == ["-", "-"]
    assert cells("pool")[3:5] == ["160 B", "-"]
    assert cells("all")[3] == "at least 160 B"


def test_weights_that_were_left_alone_are_counted_by_their_reasons():
    found = [
        WeightChange("a", f"a/{name}", technique, changed, detail, 40, 10)
        for name, technique, changed, detail in (
            ("kernel", "prune", True, "half of it"),
            ("kernel", "quantize", False, "is too small"),
            ("bias", "prune", False, "is no kernel"),
            ("bias", "quantize", False, "is a bias"),
            ("gamma", "prune", False, "is no kernel"),
            ("table", "prune", False, "is excluded"),
            ("mean", "prune", False, "is frozen"),
        )
    ]
    lines = [line.split() for line in printed(left_alone_table(found)).splitlines()]
    cells = [" ".join(line).strip("│ ").split(" │ ") for line in lines]
    assert ["is no kernel", "2", "20 B"] in cells
    assert ["is excluded", "1", "10 B"] in cells
    assert not any("is a bias" in cell or "is too small" in cell for cell, *_ in cells)
    bare = [
        WeightChange("a", f"add_{n}", "quantize", False, "stays float", 0, 0)
        for n in range(18)
    ]
    told = " ".join(printed(left_alone_table(bare)).split())
    assert "│ stays float │ 18 layers without weights │ - │" in told
    few = printed(left_alone_table(found, most=1))
    assert "2 other reasons      │       2 │  20 B" in few
    large = WeightChange("a", "large", "quantize", False, "has no form", 999, 999)
    rows = printed(left_alone_table([*found, large])).splitlines()
    assert "has no form" in rows[3]
