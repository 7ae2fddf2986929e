"""What every technique promises, whatever it does: one table, the same laws for all."""

import json

import keras
import numpy as np
import pytest
import yaml

import kerasmem as km
from kerasmem.compression.chain import run_steps
from kerasmem.compression.recipe import (
    TECHNIQUES,
    apply_technique,
    from_json,
    prepare_technique,
    read_recipe,
)
from kerasmem.compression.technique import Context
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from tests.models import L, chain

SHAPE, CLASSES = (8, 8, 3), 4
IN_PLACE = {"prune", "cluster", "equalize", "reestimate_batch_norm"}
"""Those that change a model that they own, and Quantize, all but `"int8-static"`."""

TABLE = {
    "prune": km.Prune(0.5),
    "prune by gradients": km.Prune(0.5, criterion="taylor", scope="global"),
    "prune_channels": km.PruneChannels(0.25),
    "prune_channels in rounds": km.PruneChannels(0.5, rounds=2, criterion="random"),
    "fold_batch_norm": km.FoldBatchNorm(),
    "equalize": km.Equalize(),
    "equalize without relu6": km.Equalize(replace_relu6=True),
    "reestimate_batch_norm": km.ReestimateBatchNorm(samples=32),
    "int8": km.Quantize("int8"),
    "int8-dynamic": km.Quantize("int8-dynamic"),
    "int8-static": km.Quantize("int8-static", calibration=km.Calibration(samples=40)),
    "int4": km.Quantize("int4", granularity="group", group_size=8),
    "int3": km.Quantize("int3", granularity="group", group_size=8),
    "nf4": km.Quantize("nf4", granularity="group", group_size=8),
    "float16": km.Quantize("float16"),
    "bfloat16": km.Quantize("bfloat16"),
    "mixed": km.Quantize("mixed", budget=km.Budget(2600)),
    "factorize": km.Factorize(0.25),
    "cluster": km.Cluster(4),
    "distill": km.Distill(),
}
EVERY = pytest.mark.parametrize("technique", TABLE.values(), ids=TABLE)

CONFIGS = [
    km.Prune(0.3, exclude=["head"]),
    km.Prune(0.8, scope="global", ratios={"dense": 0.5}),
    km.PruneChannels(0.4, ratios={"head": 0.1}, ignore="first", round_to=8),
    km.Factorize(energy=0.9, method="channel", include=("conv", "dense")),
    km.Cluster(16, start="linear", exclude="last"),
    km.Distill(epochs=3, losses=["logits", {"loss": "features"}], hard_weight=0.2),
    km.Distill(losses=["logits", {"loss": "dkd", "beta": 4.0}]),
    km.Quantize("int4", rounding="adaptive"),
    km.Quantize("int4", scales="mse"),
    km.Quantize("int8-static", calibration=km.Calibration("entropy", decay=0.5)),
    km.Quantize("int8-static", exclude="top"),
    km.Quantize("mixed", budget=km.Budget("6KiB"), granularity="group", group_size=16),
    km.Quantize("int4", bias_correction=True),
]


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(40, *SHAPE)).astype("float32")
    return x, random.integers(0, CLASSES, 40)


@pytest.fixture(scope="module")
def model():
    """One for all tests: nothing that is handed in is changed."""
    keras.utils.set_random_seed(5)
    made = chain(
        SHAPE,
        L.Conv2D(6, 3, name="first"),
        L.BatchNormalization(name="norm"),
        L.ReLU(),
        L.Conv2D(8, 3, activation="relu", name="second"),
        L.Conv2D(8, 3, name="third"),
        L.ReLU(6.0),
        L.Conv2D(6, 1, name="fourth"),
        L.GlobalAveragePooling2D(),
        L.Dense(12, activation="relu", name="hidden"),
        L.Dense(CLASSES, name="head"),
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Compiled steps would take most of the time, of which JAX has no other.
    eager = {"run_eagerly": keras.backend.backend() != "jax", "jit_compile": False}
    made.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], **eager)
    random = np.random.default_rng(1)
    made.optimizer.build(made.trainable_variables)
    # Statistics and moments that are not those of a model that was just made.
    moments = [v for v in made.optimizer.variables if len(v.shape)]
    for variable in (*made.get_layer("norm").weights, *moments):
        variable.assign(random.uniform(0.5, 1.5, variable.shape))
    return made


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("contract") / "model.keras"
    model.save(path)
    return path


def context(data, **more):
    x, y = data
    return Context(data, {"x": x, "y": y, "batch_size": 20, "verbose": 0}, **more)


def values(model):
    return [to_numpy(weight) for weight in model.weights]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def differ(one, other):
    pairs = zip(values(one), values(other), strict=True)
    return any((a != b).any() for a, b in pairs)


@pytest.fixture(scope="module")
def results(model, data):
    """What each technique makes of the model, made once."""
    made = {}

    def result_of(technique):
        key = repr(technique)
        if key not in made:
            keras.utils.set_random_seed(1)
            made[key] = apply_technique(technique, model, context(data))
        return made[key]

    return result_of


@EVERY
def test_what_is_handed_in_is_not_changed(technique, model, results):
    moments = [to_numpy(variable) for variable in model.optimizer.variables]
    before = values(model), model.get_config(), model.get_compile_config()
    layers = list(model.layers)
    result, _ = results(technique)
    assert_equal(values(model), before[0])
    assert (model.get_config(), model.get_compile_config()) == before[1:]
    assert_equal([to_numpy(v) for v in model.optimizer.variables], moments)
    assert all(one is other for one, other in zip(model.layers, layers, strict=True))
    assert not set(map(id, result.variables)) & set(map(id, model.variables))
    assert not set(map(id, result.layers)) & set(map(id, model.layers))
    assert result.compiled


@EVERY
def test_every_weight_is_accounted_for(technique, model, results):
    result, changes = results(technique)
    if technique.trains:
        assert changes == []  # no weight has another form
        assert differ(result, model)
        return
    paths = sorted(weight.path for weight in model.weights)
    if getattr(technique, "scheme", "") == "int8-static":
        # It folds BatchNormalization before it rounds: what is gone, is folded.
        rows = [change for change in changes if change.technique == "fold_batch_norm"]
        assert {row.weight for row in rows} > {p for p in paths if "norm/" in p}
        paths = [path for path in paths if "norm/" not in path]
    rows = [change for change in changes if change.technique == technique.name]
    rounds = getattr(technique, "rounds", 1)
    assert sorted(row.weight for row in rows) == sorted(rounds * paths)
    assert all(row.detail and row.before_bytes > 0 for row in rows)
    assert any(row.changed for row in rows)


@pytest.mark.parametrize("copied", ["cloned", "reloaded"])
@EVERY
def test_a_copy_that_is_owned_is_changed_in_place_where_that_can_be(
    technique, copied, model, data, results, file
):
    if copied == "cloned" and technique not in (TABLE["prune"], TABLE["int8"]):
        return  # the others on a model that was read from a file
    own = clone(model) if copied == "cloned" else keras.models.load_model(file)
    keras.utils.set_random_seed(1)
    result, changes = apply_technique(technique, own, context(data, owned=True))
    in_place = technique.name in IN_PLACE or technique.trains
    in_place |= technique.name == "quantize" and technique.scheme != "int8-static"
    in_place &= not getattr(technique, "replace_relu6", False)
    assert (result is own) == in_place
    expected, expected_changes = results(technique)
    assert changes == expected_changes
    assert_equal(values(result), values(expected))


@pytest.mark.parametrize("name", ["prune", "prune_channels in rounds", "distill"])
def test_a_seed_gives_the_same_model_again_and_another_one_another(name, model, data):
    def chained(seed):
        given = context(data, seed=seed, epochs=int(name == "prune"), original=model)
        return run_steps(model, [prepare_technique(TABLE[name], given)], given)

    (one, changes), (again, same), (other, _) = map(chained, (3, 3, 4))
    assert_equal(values(one), values(again))
    assert changes == same
    # The channels of `criterion="random"` are those of a seed of its own.
    assert differ(one, other) or TABLE[name].name == "prune_channels"


@pytest.mark.one_backend
@EVERY
def test_a_model_with_nothing_to_do_is_an_error(technique, data):
    if technique.trains:
        return  # a training takes any model that has a loss
    model = chain(SHAPE, L.LayerNormalization())
    with pytest.raises(ModelError, match=r"model .* has no|nothing to"):
        apply_technique(technique, model, context(data))


@pytest.mark.one_backend
@pytest.mark.parametrize("field", ["include", "exclude", "ignore"])
@EVERY
def test_a_regular_expression_that_matches_no_weight_is_an_error(
    technique, field, model, data
):
    described = technique.to_json()
    if field not in described:
        return
    if described.get("scheme") == "int8-static" and field == "include":
        return  # it takes none
    config = from_json({**described, field: ["haed"]})
    with pytest.raises(ConfigError, match="match.*Received: .*'haed'"):
        apply_technique(config, model, context(data))


@pytest.mark.one_backend
@pytest.mark.parametrize("config", [*TABLE.values(), *CONFIGS], ids=repr)
def test_a_config_is_frozen_plain_data(config, tmp_path):
    plain = config.to_json()
    assert from_json(json.loads(json.dumps(plain))) == config
    assert hash(from_json(plain)) == hash(config)
    for name, write in (("r.json", json.dumps), ("r.yaml", yaml.safe_dump)):
        (tmp_path / name).write_text(write({"steps": [plain]}))
        assert read_recipe(tmp_path / name) == (config,)
    for field in plain:
        with pytest.raises(AttributeError):
            setattr(config, field, None)


@pytest.mark.one_backend
def test_the_table_has_every_technique():
    assert {technique.name for technique in TABLE.values()} == set(TECHNIQUES)
    assert all(name == technique.name for name, technique in TECHNIQUES.items())
    schemes = {t.scheme for t in TABLE.values() if t.name == "quantize"}
    assert schemes == set(km.compression.quantize.config.SCHEMES)
