"""Channels that disappear from models of every kind."""

import keras
import numpy as np
import pytest
from keras import ops

import kerasmem as km
from kerasmem.compression.channels import verify
from kerasmem.compression.channels.apply import prune_channels
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ConfigError, KerasMemWarning, ModelError
from kerasmem.graph.channels.cost import flops
from kerasmem.graph.channels.families import movement as index
from kerasmem.graph.channels.labelled_calls import ChannelSubset, Family
from kerasmem.graph.channels.walk import FAMILIES
from kerasmem.graph.values import to_numpy
from tests.graph.channels.strategies import randomize
from tests.models import KINDS, ORIGINS, L, chain, from_origin

NOTHING = {
    # One layer between input and output has no channels of its own.
    *("dense", "einsum_dense", "depthwise_1d", "depthwise_2d", "bidirectional"),
    *("time_distributed", "activation_layer_inside", "shared"),
    # Layers that nothing is known of.
    *("embedding_subclass", "tied_embedding", "stacked_cells", "conv_lstm"),
    *("spectral_normalization", "custom", "experts"),
}


def convolutional():
    model = chain(
        (8, 8, 3),
        L.Conv2D(8, 3, activation="relu", name="first"),
        L.BatchNormalization(name="norm"),
        L.Conv2D(6, 3, name="second"),
        L.Flatten(),
        L.Dense(4, name="head"),
    )
    randomize(model)
    return model


def shapes(model):
    return {v.path: tuple(v.shape) for v in model.weights}


@pytest.mark.parametrize("name", sorted(KINDS.keys() - NOTHING))
def test_every_kind_of_model_becomes_narrower(name, origin):
    model = from_origin(KINDS[name].make(), origin)
    randomize(model)
    before = model.get_weights()
    found = prune_channels(model, km.PruneChannels(0.5))
    assert found.error <= 1e-5
    assert found.model.count_params() < model.count_params()
    for old, now in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, now)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", sorted(NOTHING))
def test_a_model_without_channels_of_its_own_is_an_error(name):
    with pytest.raises(ModelError, match="no channels that could be removed"):
        prune_channels(KINDS[name].make(), km.PruneChannels(0.5))


@pytest.mark.one_backend
def test_without_channels_the_classes_that_are_not_seen_into_are_named():
    for model, reason in (
        (KINDS["custom"].make(), r"layers of other classes: \w+ \(\d\)\. Next"),
        (chain((6,), L.ReLU()), "Received: no layer with channels"),
    ):
        with pytest.raises(ModelError, match=reason):
            prune_channels(model, km.PruneChannels(0.5))


def test_the_channels_with_the_smallest_kernels_go_from_every_weight():
    model = convolutional()
    kernel = to_numpy(model.get_layer("first").kernel)
    stay = np.sort(np.argsort(np.square(kernel).sum((0, 1, 2)))[4:])
    small, _ = apply_technique(km.PruneChannels(0.5, ignore="second"), model)
    expected = {
        "first/kernel": kernel[..., stay],
        "norm/moving_mean": to_numpy(model.get_layer("norm").moving_mean)[stay],
        "second/kernel": to_numpy(model.get_layer("second").kernel)[:, :, stay],
        "head/kernel": to_numpy(model.get_layer("head").kernel),
    }
    found = {v.path: to_numpy(v) for v in small.weights}
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value)


@pytest.mark.one_backend
@pytest.mark.parametrize("arguments", [{"ignore": "bias"}, {"ratios": {"bias": 0.3}}])
def test_a_pattern_of_kept_channels_alone_is_refused(arguments):
    model = chain((6,), L.Dense(8, use_bias=False), L.Dense(4))
    with pytest.raises(ConfigError, match=r"removable channels\. Received: 'bias'"):
        prune_channels(model, km.PruneChannels(0.5, **arguments))


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "filters"),
    [
        ({}, (4, 3)),
        ({"round_to": 4}, (4, 4)),
        ({"min_channels": 5}, (5, 5)),
        ({"ignore": "first"}, (8, 3)),
        ({"ratios": {"second": 0.2}}, (4, 5)),
        ({"criterion": "l1"}, (4, 3)),
        ({"criterion": "group"}, (4, 3)),
        ({"criterion": "fpgm"}, (4, 3)),
        ({"criterion": "batch_norm", "ignore": "second"}, (4, 6)),
    ],
)
def test_how_many_channels_stay(arguments, filters):
    found = prune_channels(convolutional(), km.PruneChannels(0.5, **arguments))
    of = [found.model.get_layer(name).filters for name in ("first", "second")]
    assert tuple(of) == filters


@pytest.mark.one_backend
def test_all_ranked_together_the_weak_layer_loses_more():
    model = convolutional()
    second = model.get_layer("second")
    values = np.ones(second.kernel.shape, "float32")
    values[..., :3] = 1e-3
    second.kernel.assign(values)
    model.get_layer("first").kernel.assign(np.ones((3, 3, 3, 8), "float32"))
    small, _ = apply_technique(km.PruneChannels(0.2, scope="global"), model)
    assert small.get_layer("first").filters == 8
    assert small.get_layer("second").filters == 4


def multiplications(model):
    """Count by hand: kernel entries times the places it is applied at."""
    total = 0
    for layer in model.layers:
        if hasattr(layer, "kernel"):
            total += np.prod(layer.kernel.shape) * np.prod(layer.output.shape[1:-1])
    return int(total)


@pytest.mark.one_backend
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_as_many_channels_go_as_it_takes(scope):
    model = chain(
        (12, 12, 3),
        L.Conv2D(24, 3, activation="relu"),
        L.DepthwiseConv2D(3, use_bias=False),
        L.Conv2D(40, 3),
        L.GlobalAveragePooling2D(),
        L.Dense(5),
    )
    randomize(model)
    for of, count in (
        ("parameters", lambda m: m.count_params()),
        ("multiplications", multiplications),
    ):
        small, _ = apply_technique(km.PruneChannels(0.6, of=of, scope=scope), model)
        assert 0.34 < count(small) / count(model) <= 0.4


@pytest.mark.one_backend
def test_frozen_layers_stay_frozen():
    model = convolutional()
    model.get_layer("first").trainable = False
    small, _ = apply_technique(km.PruneChannels(0.5), model)
    assert [layer.trainable for layer in small.layers] == [
        layer.trainable for layer in model.layers
    ]
    model.trainable = False
    small, _ = apply_technique(km.PruneChannels(0.5), model)
    assert small.trainable_variables == []


def test_km_compress_removes_channels_fine_tunes_and_writes_a_plain_file(tmp_path):
    model = convolutional()
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(32, 8, 8, 3)).astype("float32")
    data = (x, x[:, 0, 0, :1].repeat(4, -1))
    result = km.compress(
        model,
        [km.PruneChannels(0.5), km.Prune(0.5)],
        data=data,
        validation_data=data,
        fine_tune_epochs=2,
    )
    assert result.report.after.parameters < 0.5 * result.report.before.parameters
    assert result.report.after.metrics["loss"] < result.report.before.metrics["loss"]
    assert {c.technique for c in result.changes} == {
        "prune",
        "prune_channels",
        "reestimate_batch_norm",
    }
    result.save(tmp_path / "small.keras")
    loaded = keras.models.load_model(tmp_path / "small.keras")
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(result.model(x)))


@pytest.mark.one_backend
def test_every_weight_is_told_of_with_the_reason_it_stays():
    model = chain(
        (6,),
        L.Dense(8, name="wide"),
        L.LayerNormalization(name="norm"),
        L.Dense(6, name="inner"),
        L.Lambda(lambda x: 2 * x, name="mystery"),
        L.Dense(5, name="behind"),
        L.Dense(2, name="head"),
    )
    found = prune_channels(model, km.PruneChannels(0.5))
    details = {c.weight: c.detail for c in found.changes}
    assert "normalizes all of its channels" in details["wide/kernel"]
    assert "Lambda 'mystery' is not supported" in details["inner/kernel"]
    assert details["behind/kernel"] == "(6, 5) to (6, 3)"
    assert details["head/bias"] == "has the channels of output 0 of the model"
    assert found.unknown.keys() == {"mystery"}


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float32"])
def test_what_rounding_may_explain_goes_with_the_precision(policy):
    keras.utils.set_random_seed(0)
    layers = [L.Dense(32, activation="relu", dtype=policy) for _ in range(4)]
    model = chain((16,), *layers, L.Dense(4))
    nothing = ChannelSubset(np.zeros(1, int), np.zeros(0, int), [])

    def apart(share):
        other, random = keras.models.clone_model(model), np.random.default_rng(0)
        other.set_weights(
            [
                w * random.uniform(1 - share, 1 + share, w.shape)
                for w in model.get_weights()
            ]
        )
        return verify.difference(model, other, nothing)

    if policy == "float32":
        with pytest.raises(ModelError, match="without channels differ by"):
            apart(2.0**-8)
    else:
        assert apart(2.0**-8) > verify.TOLERANCE
    with pytest.raises(ModelError, match="without channels differ by"):
        apart(0.5)


def test_what_is_no_number_in_both_is_equal_and_in_one_infinitely_apart():
    nan, one = np.array([np.nan, 2.0, np.inf]), np.array([1.0, 2.0, np.inf])
    assert verify._apart([nan], [nan.copy()]) == 0.0
    assert verify._apart([nan], [one]) == verify._apart([one], [nan]) == np.inf


def test_a_wrong_surgery_is_found_out(monkeypatch):
    model = convolutional()
    found = prune_channels(model, km.PruneChannels(0.5))
    monkeypatch.setattr(ChannelSubset, "silence", lambda self, variable, value: value)
    with pytest.raises(ModelError, match="without channels differ by"):
        prune_channels(model, km.PruneChannels(0.5))
    assert prune_channels(model, km.PruneChannels(0.5, verify=False)).error is None
    assert found.error <= 1e-5


@pytest.mark.one_backend
def test_a_wrong_shape_is_found_out_without_running_the_model(monkeypatch):
    inputs = keras.Input((5, 6))
    model = keras.Model(inputs, L.Dense(2)(L.Dense(8)(inputs)[:, 0]))
    whole = Family(index.item, arguments=lambda call, kept: ((slice(None),),))
    monkeypatch.setitem(FAMILIES, "indexed", whole)
    with pytest.raises(ModelError, match=r"Expected: \(None, 4\).*\(None, 5, 4\)"):
        prune_channels(model, km.PruneChannels(0.5, verify=False))


@pytest.mark.parametrize(
    ("scope", "merge_mode"),
    [("layer", "concat"), ("global", None), ("isomorphic", "concat")],
)
def test_both_directions_of_a_layer_lose_equally_many_units(scope, merge_mode):
    inputs = keras.Input((4, 3))
    layer = L.Bidirectional(
        L.GRU(8, return_sequences=True), merge_mode=merge_mode, name="both"
    )
    y = layer(inputs)
    y = y if merge_mode else L.Concatenate()(y[::-1])
    model = keras.Model(inputs, L.Dense(1)(L.Flatten()(y)))
    randomize(model)
    kernel = layer.forward_layer.cell.kernel
    weak = np.tile(np.arange(8) < 5, 3)
    kernel.assign(np.where(weak, 0.01, 1.0) * np.ones((3, 24)))
    found = prune_channels(model, km.PruneChannels(0.5, scope=scope))
    both = found.model.get_layer("both")
    assert both.forward_layer.units == both.backward_layer.units == 4
    assert found.error <= 1e-5
    # One direction that is left alone keeps the other, too.
    alone = km.PruneChannels(0.5, scope=scope, ignore="forward")
    with pytest.warns(KerasMemWarning, match="or tied groups must keep their channels"):
        kept, _ = apply_technique(alone, model)
    assert kept.count_params() == model.count_params()


def test_units_of_one_direction_that_stay_keep_as_many_of_the_other():
    inputs = keras.Input((4, 3))
    y = L.Bidirectional(L.LSTM(6, return_sequences=True), name="both")(inputs)
    model = keras.Model(inputs, [L.Dense(1)(y), y[..., :2]])
    randomize(model)
    found = prune_channels(model, km.PruneChannels(0.5))
    assert found.error <= 1e-5
    both = found.model.get_layer("both")
    assert both.forward_layer.units == both.backward_layer.units == 4


def padded_inputs(inputs):
    return L.Flatten()(
        ops.pad(L.Concatenate()([inputs, inputs]), [(0, 0), (0, 0), (2, 1)])
    )


def looked_up(inputs):
    indices = ops.cast(ops.abs(L.Dense(3, name="indices")(inputs)), "int32")
    return L.Reshape((-1,))(L.Embedding(9, 4)(indices))


def later_steps(inputs):
    return L.Flatten()(L.Dense(6)(inputs)[:, 1:])


@pytest.mark.parametrize(
    ("front", "shape", "parameters"),
    [
        # Of 30 inputs of a layer of 8 units 4 units stay.
        (padded_inputs, (2, 6), 30 * 4 + 4 + 4 * 2 + 2),
        # What is looked up has 2 of 4 channels left, for each of 2 x 3 indices.
        (looked_up, (2, 5), 5 * 3 + 3 + 9 * 2 + 12 * 4 + 4 + 4 * 2 + 2),
        # Three of the six channels stay, at one step of two and at any of an open axis.
        (later_steps, (2, 6), 6 * 3 + 3 + 3 * 4 + 4 + 4 * 2 + 2),
    ],
)
def test_entries_that_are_moved_are_not_mixed_up(front, shape, parameters, origin):
    inputs = keras.Input(shape)
    model = keras.Model(inputs, L.Dense(2)(L.Dense(8)(front(inputs))))
    randomize(model)
    found = prune_channels(from_origin(model, origin), km.PruneChannels(0.5))
    assert found.error <= 1e-5
    assert found.model.count_params() == parameters


@pytest.mark.parametrize("key", [(slice(None), 3), (slice(None), slice(1, None))])
def test_steps_are_taken_from_an_axis_without_a_length(key, origin):
    inputs = keras.Input((None, 6))
    model = keras.Model(inputs, L.Dense(2)(L.Dense(8)(inputs)[key]))
    randomize(model)
    found = prune_channels(from_origin(model, origin), km.PruneChannels(0.5))
    assert found.error <= 1e-5
    assert found.model.count_params() == 6 * 4 + 4 + 4 * 2 + 2


def test_heads_and_their_dimensions_go_and_scores_stay_what_they_were():
    x = keras.Input((5, 8))
    attention = L.MultiHeadAttention(4, 6, name="attention")
    model = keras.Model(x, L.Dense(2)(attention(x, x)))
    randomize(model)
    found = prune_channels(model, km.PruneChannels(0.5))
    config = found.model.get_layer("attention").get_config()
    assert (config["num_heads"], config["key_dim"], config["value_dim"]) == (2, 3, 3)
    assert config["output_shape"] == (4,)
    assert found.error <= 1e-5


@pytest.mark.parametrize(
    ("steps", "bias", "stays_on_tensorflow"),
    [
        (5, True, False),
        (4, True, True),
        (3, True, False),
        (2, True, True),
        (4, False, False),
    ],
)
def test_heads_of_one_dimension_go_unless_keras_confuses_them_with_steps(
    steps, bias, stays_on_tensorflow
):
    x = y = keras.Input((steps, 6))
    for number in range(2):
        layer = L.GroupQueryAttention(1, 4, 2, use_bias=bias, name=f"heads_{number}")
        y = layer(y, y)
    model = keras.Model(x, L.Dense(2)(L.Dense(5)(y)))
    randomize(model)
    found = prune_channels(model, km.PruneChannels(0.5))
    assert found.error <= 1e-5
    stays = stays_on_tensorflow and keras.backend.backend() == "tensorflow"
    config = found.model.get_layer("heads_1").get_config()
    assert config["num_query_heads"] == (4 if stays else 2)
    reasons = [c.detail for c in found.changes if "heads_1/query" in c.weight]
    assert any("may add along another axis" in reason for reason in reasons) == stays


def test_a_shared_layer_and_a_nested_model_called_twice():
    inner = keras.Sequential([keras.Input((6,)), L.Dense(8, "relu"), L.Dense(6)])
    x = keras.Input((4,))
    first, again = L.Dense(6), L.Dense(6)
    shared = L.Dense(6)
    y = shared(inner(first(x))) + shared(inner(again(x)))
    model = keras.Model(x, L.Dense(2)(y))
    randomize(model)
    found = prune_channels(model, km.PruneChannels(0.5))
    assert found.error <= 1e-5
    assert sum(np.prod(s) for s in shapes(found.model).values()) == (
        2 * (4 * 3 + 3) + (3 * 4 + 4) + (4 * 3 + 3) + (3 * 3 + 3) + 3 * 2 + 2
    )


def test_several_inputs_and_outputs_by_name():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    x = L.Dense(16, activation="relu")(L.Concatenate()([a, b]))
    outputs = {"sum": L.Dense(1, name="sum")(x), "sign": L.Dense(2, name="sign")(x)}
    model = keras.Model({"a": a, "b": b}, outputs)
    randomize(model)
    found = prune_channels(model, km.PruneChannels(0.5))
    assert found.error <= 1e-5
    given = {"a": np.ones((2, 4), "float32"), "b": np.ones((2, 3), "float32")}
    assert found.model(given).keys() == {"sum", "sign"}
    assert found.model.count_params() == 7 * 8 + 8 + 8 + 1 + 16 + 2


def test_zeros_beside_steps_that_stand_behind_channels():
    inputs = keras.Input((4, 3))
    x = L.Permute((2, 1))(L.Dense(8, name="narrow")(inputs))
    x = L.ZeroPadding1D(1, data_format="channels_first")(x)
    model = keras.Model(inputs, L.Dense(1)(L.Flatten()(x)))
    randomize(model)
    found = prune_channels(model, km.PruneChannels(0.5))
    assert found.error <= 1e-5
    assert found.model.get_layer("narrow").units == 4


def test_query_and_value_of_grouped_attention_lose_the_same_channels():
    inputs = keras.Input((3, 8))
    query, value = L.Dense(8, name="query")(inputs), L.Dense(8, name="value")(inputs)
    x = L.GroupQueryAttention(3, 4, 2)(query, value)
    model = keras.Model(inputs, L.Dense(1)(L.Flatten()(x)))
    randomize(model)
    found = prune_channels(model, km.PruneChannels(0.5, criterion="random"))
    assert found.error <= 1e-5
    assert found.model.get_layer("query").units == 4
    assert found.model.get_layer("value").units == 4


class OfTwo(keras.Model):
    """A functional model that its constructor builds, with two inputs."""

    def __init__(self, units, **kwargs):
        a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
        x = L.Dense(units, activation="relu")(L.Concatenate()([a, b]))
        super().__init__({"a": a, "b": b}, L.Dense(2)(x), **kwargs)
        self.units = units

    def get_config(self):
        return {"units": self.units}


class Doubled(OfTwo):
    """One whose class does something else than its graph."""

    def call(self, inputs, training=None, mask=None):
        return 2.0 * super().call(inputs, training, mask)


FORMS = {
    "one": lambda seen, pooled: pooled,
    "list": lambda seen, pooled: [seen, pooled],
    "sorted": lambda seen, pooled: {"pooled": pooled, "seen": seen},
    "unsorted": lambda seen, pooled: {"seen": seen, "pooled": pooled},
}


@keras.saving.register_keras_serializable("tests")
class EncoderByConstructor(keras.Model):
    """A functional model that its constructor builds, one layer of it a model."""

    def __init__(self, form, **kwargs):
        x = keras.Input((6,))
        deep = keras.Sequential([keras.Input((6,)), L.Dense(9), L.Dense(12)])
        seen = L.Dense(8, name="seen")(deep(x))
        pooled = L.Dense(10, activation="tanh", name="pooled")(seen)
        super().__init__(x, FORMS[form](seen, pooled), **kwargs)
        self.form = form

    def get_config(self):
        return {"form": self.form, "name": self.name}


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("form", FORMS)
def test_a_model_within_that_its_constructor_builds_stays_whole(form, origin):
    x = keras.Input((4,))
    narrow = L.Dense(16, activation="relu", name="before")(x)
    made = EncoderByConstructor(form, name="inner")(L.Dense(6, name="into")(narrow))
    named = {"seen": made[0], "pooled": made[1]} if form == "list" else made
    named = {"pooled": made} if form == "one" else named
    read = [L.Dense(8, name=f"after_{key}")(named[key]) for key in sorted(named)]
    again = L.Dense(8, name="again")(named["pooled"])
    model = keras.Model(x, L.Dense(2, name="last")(L.Concatenate()([again, *read])))
    model = from_origin(model, origin)
    randomize(model)
    found = prune_channels(model, km.PruneChannels(0.5))
    assert found.error <= 1e-5
    inner = found.model.get_layer("inner")
    assert type(inner) is EncoderByConstructor
    old, now = model.get_layer("inner").get_weights(), inner.get_weights()
    assert all(np.array_equal(*pair) for pair in zip(old, now, strict=True))
    units = {layer.name: getattr(layer, "units", 0) for layer in found.model.layers}
    after = {f"after_{key}": 4 for key in named} | {"again": 4}
    assert units.items() >= {"before": 8, "into": 6, **after, "last": 2}.items()
    told = {c.weight: c.detail for c in found.changes}
    assert told["pooled/kernel"] == "is in 'inner', whose config does not list layers"


def test_multiplications_in_a_model_that_its_constructor_builds_count():
    x = keras.Input((6,))
    whole = keras.Model(x, L.Dense(5)(EncoderByConstructor("one")(x)))
    assert flops(whole) == 2 * (6 * 9 + 9 * 12 + 12 * 8 + 8 * 10 + 10 * 5)


# Keras says it of a task of KerasHub whenever it loads one.
@pytest.mark.filterwarnings("ignore:.compile\\(\\). was not called")
@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.one_backend
def test_a_head_on_bert_becomes_narrower_and_bert_stays(origin):
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=40,
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=16,
    )
    task = keras_hub.models.BertTextClassifier(backbone, num_classes=8)
    randomize(task)
    for body, read in ((backbone, lambda y: y["pooled_output"]), (task, lambda y: y)):
        y = L.Dense(8, name="hidden")(read(body(backbone.input)))
        model = from_origin(keras.Model(backbone.input, L.Dense(3)(y)), origin)
        found = prune_channels(model, km.PruneChannels(0.5))
        assert found.error <= 1e-5
        assert found.model.get_layer("hidden").units == 4
        assert type(found.model.get_layer(body.name)) is type(body)


def test_a_model_that_its_constructor_builds_keeps_its_inputs():
    model = OfTwo(16)
    randomize(model)
    found = prune_channels(model, km.PruneChannels(0.5))
    assert found.error <= 1e-5
    assert found.model.count_params() == 7 * 8 + 8 + 16 + 2
    given = {"a": np.ones((2, 4), "float32"), "b": np.ones((2, 3), "float32")}
    assert found.model(given).shape == (2, 2)


@pytest.mark.one_backend
def test_a_call_of_its_own_counts_and_not_the_graph_beneath():
    model = Doubled(16)
    with pytest.raises(ModelError, match="subclassed model .* cannot be traced"):
        prune_channels(model, km.PruneChannels(0.5))


def test_a_subclassed_model_that_takes_a_list_still_does():
    class OfList(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.last = L.Dense(8), L.Dense(2)

        def call(self, inputs):
            return self.last(self.first(inputs[0]))

    model, given = OfList(), [np.ones((2, 4), "float32")]
    model(given)
    found = prune_channels(model, km.PruneChannels(0.5))
    assert found.error <= 1e-5
    assert found.model(given).shape == (2, 2)
    assert found.model.count_params() == 4 * 4 + 4 + 4 * 2 + 2


@pytest.mark.one_backend
def test_a_model_whose_call_cannot_be_followed_is_an_error():
    class Chooses(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = L.Dense(4)

        def call(self, x):
            return self.dense(x) if x[0, 0] > 0 else x

    model = Chooses()
    model(np.ones((2, 4), "float32"))
    with pytest.raises(ModelError, match="subclassed model .* cannot be traced"):
        prune_channels(model, km.PruneChannels(0.5))


def test_half_precision_and_channels_first():
    with keras.device("cpu"):
        model = chain(
            (3, 8, 8),
            L.Permute((2, 3, 1)),
            L.Conv2D(8, 3, dtype="mixed_bfloat16"),
            L.Permute((3, 1, 2)),
            L.BatchNormalization(axis=1),
            L.GlobalAveragePooling2D(data_format="channels_first"),
            L.Dense(2),
        )
    randomize(model)
    found = prune_channels(model, km.PruneChannels(0.5))
    assert found.model.layers[2].filters == 4
    assert found.model.layers[2].dtype_policy.name == "mixed_bfloat16"


@pytest.mark.one_backend
@pytest.mark.parametrize("ratio", [-0.1, 1, float("nan"), "0.5", True, None])
def test_a_ratio_outside_of_0_to_1_is_an_error(ratio):
    with pytest.raises(ConfigError, match="less than 1. Received: ratio="):
        km.PruneChannels(ratio)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"criterion": "luck"}, "Received: criterion='luck'"),
        ({"of": "bytes"}, "multiplications, memory. Received: of='bytes'"),
        (
            {"scope": "model"},
            "one of layer, global, isomorphic. Received: scope='model'",
        ),
        ({"rounds": 0}, "whole number from 1 to 1000. Received: rounds=0"),
        ({"round_to": 0}, "whole number from 1. Received: round_to=0"),
        ({"min_channels": 1.5}, "Received: min_channels=1.5"),
        ({"ignore": "("}, r"regular expressions .* Received: ignore='\('"),
        ({"ratios": {"a": 2}}, r"Received: ratios\[.*\]=2"),
        ({"ratios": ["a"]}, "pairs of a regular expression and a number"),
    ],
)
def test_bad_arguments_are_errors(arguments, text):
    with pytest.raises(ConfigError, match=text):
        km.PruneChannels(0.5, **arguments)


@pytest.mark.one_backend
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_share_that_rounds_to_no_channel_warns(rounds):
    model = chain((6,), L.Dense(8), L.Dense(4))
    choice = km.PruneChannels(0.1, rounds=rounds)
    with pytest.warns(KerasMemWarning, match=r"removed nothing.* largest group has 8 "):
        same, changes = apply_technique(choice, model)
    assert same.count_params() == model.count_params()
    assert not any(change.changed for change in changes)
    apply_technique(km.PruneChannels(0.0), model)  # nothing was asked for
    smaller, _ = apply_technique(km.PruneChannels(0.25, rounds=2), model)
    assert smaller.layers[1].units == 6
