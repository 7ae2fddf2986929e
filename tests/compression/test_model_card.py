"""A model card says what was done and what it cost, in the form of the Hub."""

from dataclasses import replace

import keras
import pytest
import yaml

import kerasmem as km
from kerasmem.extras.language.model_card import model_card
from kerasmem.records import CompressionReport, ModelFigures, WeightChange

pytestmark = pytest.mark.one_backend

REPORT = CompressionReport(
    ModelFigures(4096, 2048, 512, 512, metrics={"accuracy": 0.9, "a|b": 1.0}),
    ModelFigures(1024, 512, 512, 100, metrics={"accuracy": 0.85, "a|b": 2.0}),
    steps=(
        {"technique": "prune", "sparsity": 0.8, "include": ()},
        {"technique": "quantize", "scheme": "int8"},
    ),
    samples=2000,
)
CHANGES = (
    WeightChange("a", "a/kernel", "prune", True, "80 %", 8, 8),
    WeightChange("a", "a/kernel", "quantize", True, "int8", 8, 2),
    WeightChange("a", "a/bias", "quantize", False, "a bias", 8, 8),
)


def head_and_text(card):
    _, head, text = card.split("---\n", 2)
    return yaml.safe_load(head), text


def test_its_head_is_metadata_of_the_hub():
    card = model_card("Small", REPORT, CHANGES, {"license": "mit", "base_model": "a/b"})
    assert card.startswith("---\n")
    assert head_and_text(card)[0] == {
        "library_name": "keras",
        "tags": ["compression", "pruning", "quantization"],
        "license": "mit",
        "base_model": "a/b",
    }


def test_its_text_has_steps_figures_and_what_they_were_measured_on():
    _, text = head_and_text(model_card("Small", REPORT, CHANGES, {}))
    for line in (
        "# Small",
        "1. **prune**: `sparsity=0.8`",
        "2. **quantize**: `scheme='int8'`",
        "Changed weights: 1. Unchanged weights: 1.",
        "| file | 4.00 KiB | 1.00 KiB | measured |",
        "| weights in RAM | 2.00 KiB | 512 B | counted |",
        "| nonzero parameters | 512 | 100 | counted |",
        "| accuracy | 0.9000 | 0.8500 | measured |",
        "| a\\|b | 1.0000 | 2.0000 | measured |",
        "Loss and metrics are measured on 2,000 validation samples.",
    ):
        assert line in text.splitlines()


def test_a_wicked_name_is_text():
    card = model_card("<b>\n# x", REPORT, (), {"note": "a: b\n---\nc"})
    assert "<b>" not in card
    assert "\n# &lt;b> # x\n" in card
    assert yaml.safe_load(card.split("\n---\n\n")[0][4:])["note"] == "a: b\n---\nc"


def test_a_result_without_data_says_that_nobody_judged_it():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
    card = km.compress(model, km.Prune(0.5)).model_card(license="mit")
    assert "The accuracy is unknown" in card
    assert f"\n# {model.name}\n" in card


def test_a_result_that_is_far_worse_warns_in_its_card():
    warned = replace(REPORT, warning="accuracy fell from 0.9 to 0.1")
    line = "> **Warning**: accuracy fell from 0.9 to 0.1"
    assert line in model_card("a", warned, CHANGES, {}).splitlines()
    assert "Warning" not in model_card("a", REPORT, CHANGES, {})
