"""Steps from a file are the steps that it lists."""

import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import yaml

import kerasmem as km
from kerasmem.compression.recipe import as_steps, read_recipe
from kerasmem.errors import ConfigError

pytestmark = pytest.mark.one_backend

STEPS = [
    km.PruneChannels(0.3, round_to=4),
    km.Prune(0.8, scope="global", ratios={"dense": 0.5}),
    km.Cluster(16, start="linear"),
    km.Distill(epochs=3, losses=["logits", {"loss": "dkd", "beta": 4.0}]),
    km.Quantize("int4", granularity="group", group_size=32),
]


def written(path, content):
    write = json.dumps if path.suffix == ".json" else yaml.safe_dump
    path.write_text(write(content))
    return path


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
@pytest.mark.parametrize("named", [False, True])
def test_what_techniques_tell_of_themselves_is_read_back(tmp_path, suffix, named):
    plain = [step.to_json() for step in STEPS]
    path = written(tmp_path / f"a{suffix}", {"steps": plain} if named else plain)
    assert read_recipe(path) == as_steps(str(path)) == as_steps(plain) == tuple(STEPS)


def test_short_forms_are_enough(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(
        "- {technique: prune, sparsity: 0.8}\n- technique: quantize\n  scheme: int8\n"
    )
    assert as_steps(path) == (km.Prune(0.8), km.Quantize("int8"))


def test_a_model_is_compressed_by_a_recipe_as_by_its_steps(tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    steps = [km.Prune(0.5, include="kernel"), km.Quantize("int8")]
    path = written(tmp_path / "r.json", [step.to_json() for step in steps])
    by_file = km.compress(model, path)
    by_steps = km.compress(model, steps)
    assert by_file.report.steps == by_steps.report.steps
    for one, other in zip(
        by_file.model.get_weights(), by_steps.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "[]", "ends in .json, .yaml, .yml"),
        ("a.json", "[{", "is not valid JSON"),
        ("a.yaml", "[{", "is not valid YAML"),
        ("a.yaml", "!!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("a.json", "[]", "Expected a list of steps"),
        ("a.json", '"prune"', "Expected a list of steps"),
        ("a.json", '{"steps": [], "epochs": 1}', "Expected a list of steps"),
        ("a.json", '["prune"]', "Step 1 of the recipe .* is not a technique"),
        (
            "a.json",
            '[{"technique": "prun"}]',
            "Step 1 .* `technique` .* one of",
        ),
        (
            "a.json",
            '[{"technique": "quantize"}, {"technique": "prune", "sparsity": 2}]',
            "Step 2 .* at least 0 and less than 1",
        ),
        (
            "a.json",
            '[{"technique": "prune", "rate": 1}]',
            "Unknown argument 'rate' of 'prune'[.]",
        ),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_recipe(tmp_path / name)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="Cannot read the recipe"):
        read_recipe(tmp_path / "none.json")


@pytest.mark.parametrize("steps", [None, [], 3, [km.Prune(0.5), "int8"]])
def test_what_are_no_steps_is_refused(steps):
    with pytest.raises(ConfigError, match="one or more techniques"):
        as_steps(steps)


def test_the_recipe_of_the_guide_is_one(tmp_path):
    guide = (Path(__file__).parents[2] / "docs" / "shrinking.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    assert blocks
    for block in blocks:
        (tmp_path / "guide.yaml").write_text(block)
        assert read_recipe(tmp_path / "guide.yaml")
