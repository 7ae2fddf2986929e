"""`kerasmem inspect` counts each byte of a model once and says what is unknown."""

import re

import keras
import pytest
from keras import layers

import kerasmem as km


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def saved(model, *, steps=0, optimizer="adam"):
    """Save a model to model.keras, trained for so many steps."""
    model.compile(optimizer, "mse", jit_compile=False)
    x = keras.ops.ones((1, *model.inputs[0].shape[1:]))
    for _ in range(steps):
        model.train_on_batch(x, keras.ops.zeros_like(model(x)))
    model.save("model.keras")


def tower():
    """A nested model called twice and a shared layer called three times."""
    shared = layers.Dense(4, use_bias=False, name="shared")
    inside = layers.Dense(4, use_bias=False, name="inside")
    inner = keras.Sequential([keras.Input((4,)), inside, layers.ReLU()], name="inner")
    x = keras.Input((4,), name="x")
    y = layers.Dense(6, name="last")(inner(inner(shared(shared(shared(x))))))
    return keras.Model(x, y)


WEIGHTS = 4 * 4 + 4 * 4 + 4 * 6 + 6
OUTPUTS = 4 + 3 * 4 + 2 * (4 + 4) + 6


@pytest.mark.one_backend
def test_nested_and_shared_layers_count_once_and_the_sums_are_exact(kerasmem):
    saved(tower())
    found = kerasmem("inspect model.keras --batch-size 5 --json").json
    rows = {layer["name"]: layer for layer in found["layers"]}
    assert rows["shared"]["parameters"] == 4 * 4
    assert (rows["shared"]["calls"], rows["shared"]["output_bytes"]) == (
        3,
        3 * 5 * 4 * 4,
    )
    assert rows["last"]["parameters"] == 4 * 6 + 6
    assert rows["inside"]["calls"] == 2
    assert found["parameters"] == WEIGHTS
    assert found["weight_bytes"] == 4 * found["parameters"]
    assert found["output_bytes"] == 5 * 4 * OUTPUTS
    assert sum(row["output_bytes"] for row in rows.values()) == found["output_bytes"]


@pytest.mark.one_backend
def test_shares_are_of_the_whole(kerasmem):
    saved(tower())
    lines = kerasmem("inspect model.keras").out.splitlines()
    last = next(line for line in lines if " last " in line)
    assert f"{100 * 30 / WEIGHTS:.1f} %" in last  # of the weights
    assert f"{100 * 6 / OUTPUTS:.1f} %" in last  # of the outputs
    assert f" {WEIGHTS} " in next(line for line in lines if " all " in line)


@pytest.mark.parametrize(
    ("optimizer", "entries"),
    [
        ("sgd", 2),
        ("adam", 2 * WEIGHTS + 2),
    ],  # with the step counter and the learning rate
)
def test_the_optimizers_state_is_what_the_file_holds(kerasmem, optimizer, entries):
    saved(tower(), steps=1, optimizer=optimizer)
    found = kerasmem("inspect model.keras --json").json
    # Every entry is float32, but for the counter, which the backends hold differently.
    assert found["optimizer_bytes"] in (4 * entries, 4 * entries + 4)
    assert "optimizer state: " in kerasmem("inspect model.keras").out


def test_an_optimizer_that_has_learned_nothing_is_told_from_one_that_has(kerasmem):
    saved(tower(), steps=1, optimizer="adam")
    assert "before any step" not in kerasmem("inspect model.keras").out
    km.save_model(keras.models.load_model("model.keras"), "small.keras")
    said = kerasmem("inspect small.keras").out
    assert re.search("optimizer state: .*B in the file, before any step", said)


@pytest.mark.one_backend
def test_a_file_without_an_optimizer_says_so(kerasmem):
    tower().save("model.keras")
    assert kerasmem("inspect model.keras --json").json["optimizer_bytes"] == 0
    assert "optimizer state: none in the file" in kerasmem("inspect model.keras").out


def test_an_h5_file_is_read_too(kerasmem):
    model = tower()
    saved(model, steps=1)
    model.save("model.h5")
    both = [
        kerasmem(f"inspect model.{suffix} --json").json["optimizer_bytes"]
        for suffix in ("h5", "keras")
    ]
    assert both[0] > 8 * WEIGHTS
    assert abs(both[0] - both[1]) <= 8


@keras.saving.register_keras_serializable("kerasmem-tests")
class Own(keras.Model):
    """A model without a graph: two layers, one of them inside of a third."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.block = keras.Sequential([layers.Dense(3, name="low")], name="block")
        self.high = layers.Dense(2, name="high")

    def call(self, inputs):
        return self.high(self.block(inputs))


@keras.saving.register_keras_serializable("test_inspect")
class OfParts(keras.Model):
    """As a VAE whose `train_step` calls its parts and never the model."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.encoder = keras.Sequential([keras.Input((5,)), layers.Dense(3)])


@pytest.mark.one_backend
def test_a_model_without_a_graph_says_what_is_unknown(kerasmem):
    model = Own(name="own")
    model(keras.ops.ones((1, 5)))
    model.save("own.keras")
    found = kerasmem("inspect own.keras --json").json
    rows = {layer["name"].split("/")[-1]: layer for layer in found["layers"]}
    assert {name: row["parameters"] for name, row in rows.items()} == {
        "low": 5 * 3 + 3,
        "high": 3 * 2 + 2,
    }
    assert found["weight_bytes"] == 4 * (18 + 8)
    assert found["output_bytes"] is None
    assert found["activation_peak_bytes"] is None
    text = kerasmem("inspect own.keras").out
    assert "unknown: the model has no graph" in text


@pytest.mark.one_backend
def test_a_model_of_built_parts_is_shown_though_it_was_never_called(kerasmem):
    with pytest.warns(UserWarning, match="has not yet been built"):
        OfParts().save("parts.keras")
    found = kerasmem("inspect parts.keras --json").json
    assert found["parameters"] == 18


@pytest.mark.one_backend
def test_a_model_that_was_never_built_is_an_error_and_no_empty_table(kerasmem):
    with pytest.warns(UserWarning, match="has not yet been built"):
        keras.Sequential([layers.Dense(3)]).save("model.keras")
    done = kerasmem("inspect model.keras")
    assert (done.code, done.out) == (2, "")
    assert "has no weights yet." in done.err
