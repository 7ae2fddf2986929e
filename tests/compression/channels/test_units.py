"""Hidden units of a model that its own class builds go by an argument of its config."""

import keras
import numpy as np
import pytest
from keras import layers

import kerasmem as km
from kerasmem.compression.channels.units import places, units_along
from kerasmem.compression.channels.widths import find_widths
from kerasmem.compression.recipe import apply_technique
from kerasmem.compression.technique import Context
from kerasmem.errors import ConfigError, KerasMemWarning, ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from tests.constructed import Net
from tests.masked import called, kept_places, masked, randomized

X = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")


def net(kind="plain", **options):
    return randomized(Net(kind=kind, **options))


@pytest.mark.parametrize("kind", ["plain", "gated"])
def test_what_stays_computes_what_the_original_does_without_the_rest(kind):
    model = net(kind)
    before = [np.array(to_numpy(w)) for w in model.weights]
    small, changes = apply_technique(km.PruneChannels(0.5), model)
    assert type(small) is Net
    assert small.intermediate_dim == 4
    gates = 2 if kind == "gated" else 1
    assert model.count_params() - small.count_params() == 2 * 4 * (7 * gates + 6)
    expected = called(masked(model, small, clone(model)), X)
    np.testing.assert_allclose(called(small, X), expected, rtol=1e-5, atol=1e-6)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)
    by_path = {change.weight: change for change in changes}
    assert by_path["block_0/out/kernel"].detail == "(8, 6) to (4, 6)"
    assert not by_path["head/kernel"].changed
    assert len(changes) == len(model.weights)


def test_each_block_keeps_the_units_of_the_largest_norm():
    model = net()
    small, _ = apply_technique(km.PruneChannels(0.5), model)
    chosen = []
    for number in range(2):
        hidden, bias, out, _ = map(to_numpy, model.get_layer(f"block_{number}").weights)
        norms = (hidden**2).sum(0) + bias**2 + (out**2).sum(1)
        new = to_numpy(small.get_layer(f"block_{number}").weights[0])
        chosen.append(kept_places(hidden, new)[1].tolist())
        assert chosen[-1] == sorted(np.argsort(norms)[4:].tolist())
    assert chosen[0] != chosen[1]


@pytest.mark.one_backend
def test_blocks_that_share_a_table_lose_the_same_units():
    model = net("shared")
    small, _ = apply_technique(km.PruneChannels(0.5), model)
    expected = called(masked(model, small, clone(model)), X)
    np.testing.assert_allclose(called(small, X), expected, rtol=1e-5, atol=1e-6)
    kernels = [
        [to_numpy(m.get_layer(f"block_{n}").hidden.kernel) for m in (model, small)]
        for n in range(2)
    ]
    first, second = (kept_places(*both)[1].tolist() for both in kernels)
    assert first == second


@pytest.mark.one_backend
def test_units_that_change_what_others_do_stay():
    why = "removing a unit changes other units by"
    pattern = f"could be removed. Received: block_0/hidden/kernel: intermediate_.*{why}"
    with pytest.raises(ModelError, match=pattern) as caught:
        apply_technique(km.PruneChannels(0.5), net("normalized"))
    assert str(caught.value).count(why) == 1


@pytest.mark.one_backend
def test_others_go_all_the_same_and_why_these_stay_is_told():
    model = net(mlp_dim=8)
    small, changes = apply_technique(km.PruneChannels(0.5), model)
    assert (small.intermediate_dim, small.mlp_dim) == (4, 8)
    expected = called(masked(model, small, clone(model)), X)
    np.testing.assert_allclose(called(small, X), expected, rtol=1e-5, atol=1e-6)
    (why,) = {c.detail for c in changes if c.weight == "last/out/kernel"}
    assert why.startswith("mlp_dim: removing a unit changes other units by")


@pytest.mark.one_backend
def test_a_model_that_lists_its_layers_has_no_such_width():
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.Dense(2)(layers.Dense(8)(inputs)))
    assert find_widths(model) == ([], {})


@pytest.mark.one_backend
def test_a_share_of_the_parameters_goes_and_no_more_than_it_takes():
    model = net(intermediate_dim=64)
    small, _ = apply_technique(km.PruneChannels(0.3, of="parameters"), model)
    unit = 2 * (7 + 6)
    left = small.count_params() / model.count_params()
    assert 0.7 - unit / model.count_params() < left <= 0.7
    with pytest.raises(
        ModelError, match="removable channels leaves .* with 1% to keep"
    ):
        apply_technique(km.PruneChannels(0.99, of="parameters"), net())


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"round_to": 3}, 6),
        ({"min_channels": 7}, 7),
        ({"rounds": 2}, 4),
        ({"ratios": {"block_1/hidden": 0.25}}, 6),
        ({"criterion": "l1"}, 4),
        ({"criterion": "fpgm"}, 4),
        ({"criterion": "random"}, 4),
    ],
)
def test_as_many_units_stay_as_the_config_says(options, left):
    small, _ = apply_technique(km.PruneChannels(0.5, **options), net())
    assert small.intermediate_dim == left


@pytest.mark.one_backend
def test_what_is_ignored_stays_in_all_blocks():
    with pytest.warns(KerasMemWarning, match="PruneChannels removed nothing"):
        small, _ = apply_technique(km.PruneChannels(0.5, ignore="block_0/out"), net())
    assert small.intermediate_dim == 8
    with pytest.raises(
        ConfigError, match="no path of a weight with removable channels"
    ):
        apply_technique(km.PruneChannels(0.5, ignore="head"), net())


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("field", "value"),
    [("of", "multiplications"), ("scope", "global"), ("criterion", "batch_norm")],
)
def test_what_takes_a_graph_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"Expected: {field} in .*'{value}'"):
        apply_technique(km.PruneChannels(0.5, **{field: value}), net())


@pytest.mark.one_backend
def test_codes_are_refused():
    model = km.compress(net(), km.Quantize("int8")).model
    with pytest.raises(ModelError, match="before km.Quantize"):
        apply_technique(km.PruneChannels(0.5), model)


def test_gradients_rank_units_too():
    model = net()
    model.compile("sgd", "mse")
    model.get_layer("block_0").out.kernel.assign(
        to_numpy(model.get_layer("block_0").out.kernel)
        * (np.arange(8) % 2 == 0)[:, None]
    )
    small, _ = apply_technique(
        km.PruneChannels(0.5, criterion="taylor"), model, Context(data=(X, X[:, :2]))
    )
    kernels = [m.get_layer("block_0").hidden.kernel for m in (model, small)]
    assert kept_places(*map(to_numpy, kernels))[1].tolist() == [0, 2, 4, 6]


@pytest.mark.one_backend
def test_units_of_an_axis():
    assert units_along(6, 3, parts=2).tolist() == [0, 1, 2, 0, 1, 2]
    assert units_along(3, 3, parts=2).tolist() == [0, 1, 2]  # one entry a unit
    assert places(np.array([1.0, 2, 9, 8]), 1).tolist() == [0, 1, 3, 2]
    assert places(np.array([1.0, 2, 9, 8]), 2).tolist() == [0, 1, 1, 0]
