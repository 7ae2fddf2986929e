"""Which channels are ranked together, how many go, and in how many rounds."""

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kerasmem as km
from kerasmem.compression.channels.apply import prune_channels
from kerasmem.compression.channels.choose import memory_left
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.activations import peak_activation_bytes
from kerasmem.graph.channels import ChannelSubset, label_channels
from kerasmem.graph.channels.groups import find_groups, structures
from kerasmem.graph.channels.narrow import Narrow
from kerasmem.graph.rebuild import Rebuild
from kerasmem.graph.values import to_numpy
from tests.graph.channels.strategies import PLANS, graph, randomize
from tests.models import ORIGINS, L, chain, from_origin

few = settings(
    max_examples=6,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def residual(widths=(8, 12, 16)):
    """Return a net of blocks of three widths around a stream of six channels."""
    inputs = keras.Input((6, 6, 3))
    x = L.Conv2D(6, 1, name="stem")(inputs)
    for number, width in enumerate(widths):
        y = L.Conv2D(width, 3, padding="same", name=f"inner_{number}")(x)
        y = L.ReLU()(L.BatchNormalization()(y))
        x = x + L.Conv2D(6, 1, name=f"outer_{number}")(y)
    x = L.Dense(10, "relu", name="hidden")(L.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, L.Dense(2)(x))
    randomize(model)
    return model


def inner_norms(model):
    return [
        np.square(to_numpy(layer.kernel)).sum((0, 1, 2))
        for layer in model.layers
        if layer.name.startswith("inner")
    ]


@pytest.mark.one_backend
@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_blocks_that_are_built_alike_are_ranked_together_and_nothing_else(ratio):
    model = residual()
    random = np.random.default_rng(3)
    for number in range(3):
        kernel = model.get_layer(f"inner_{number}").kernel
        kernel.assign(random.normal(size=kernel.shape) * random.random(kernel.shape[3]))
    relative = [norms / norms.mean() for norms in inner_norms(model)]
    limit = np.sort(np.concatenate(relative))[int(ratio * 36) - 1]
    expected = [int((each > limit).sum()) for each in relative]
    choice = km.PruneChannels(ratio, scope="isomorphic", verify=False)
    small, _ = apply_technique(choice, model)
    assert [small.get_layer(f"inner_{n}").filters for n in range(3)] == expected
    assert small.get_layer("stem").filters == 6 - int(ratio * 6)
    assert small.get_layer("hidden").units == 10 - int(ratio * 10)


@pytest.mark.one_backend
def test_heads_of_all_blocks_are_alike_and_are_not_like_their_dimensions():
    x = y = keras.Input((5, 6))
    for heads in (2, 3, 4):
        y = y + L.MultiHeadAttention(heads, 5)(y, y)
        y = y + L.Dense(6)(L.Dense(7 + heads, "gelu")(y))
    model = keras.Model(x, y)
    found = label_channels(model)
    groups = find_groups(found.labels)
    pools = {}
    for structure, members in zip(
        structures(found, groups), groups.members, strict=True
    ):
        pools.setdefault(structure, []).append(len(members))
    assert sorted(pools.values()) == [[2, 3, 4], [5, 5, 5], [9, 10, 11]]


@pytest.mark.one_backend
@few
@given(PLANS, st.sampled_from(ORIGINS))
def test_the_bytes_that_are_predicted_are_those_of_the_smaller_model(plan, origin):
    model = from_origin(graph(plan)[0], origin)
    found = label_channels(model)
    groups = find_groups(found.labels)
    if not groups.members:
        return
    random = np.random.default_rng(0)
    gone = [
        random.permutation(members)[: len(members) // 2] for members in groups.members
    ]
    kept = ChannelSubset(groups.classes, np.concatenate(gone), found.labels.uses)
    smaller = Rebuild(Narrow(found, kept)).run(model)
    left = memory_left(model, found)
    assert left(kept) == peak_activation_bytes(smaller) / peak_activation_bytes(model)


@pytest.mark.one_backend
@pytest.mark.parametrize("scope", ["layer", "global", "isomorphic"])
def test_as_many_channels_go_as_it_takes_to_save_memory(scope):
    model = residual()
    small, _ = apply_technique(
        km.PruneChannels(0.4, of="memory", scope=scope, verify=False), model
    )
    share = peak_activation_bytes(small) / peak_activation_bytes(model)
    assert 0.45 < share <= 0.6


@pytest.mark.one_backend
def test_more_memory_than_there_is_in_channels_is_an_error():
    model = chain((100,), L.Dense(8), L.Dense(90))
    with pytest.raises(ModelError, match=r"leaves 9\d% of the memory"):
        apply_technique(km.PruneChannels(0.5, of="memory"), model)


@pytest.mark.one_backend
def test_memory_of_axes_without_a_length_is_an_error():
    model = chain((None, 4), L.Dense(8), L.Dense(2))
    with pytest.raises(ConfigError, match="axes of unknown length"):
        apply_technique(km.PruneChannels(0.5, of="memory"), model)


@pytest.mark.one_backend
@settings(few, max_examples=3)
@given(st.lists(st.integers(2, 40), min_size=2, max_size=4), st.data())
def test_rounds_leave_what_one_round_leaves(sizes, data):
    ratio = data.draw(st.floats(0.1, 0.9))
    rounds = data.draw(st.integers(2, 4))
    limits = {
        "round_to": data.draw(st.sampled_from([1, 4])),
        "ratios": {"dense_own": 0.5},
        "verify": False,
    }
    layers = [L.Dense(size) for size in sizes]
    model = chain((3,), *layers, L.Dense(9, name="dense_own"), L.Dense(2))
    model = from_origin(model, data.draw(st.sampled_from(ORIGINS)))
    at_once, _ = apply_technique(km.PruneChannels(ratio, **limits), model)
    slowly, _ = apply_technique(km.PruneChannels(ratio, rounds=rounds, **limits), model)
    units = [[layer.units for layer in m.layers[1:]] for m in (at_once, slowly)]
    assert units[0] == units[1]


@pytest.mark.one_backend
def test_heads_and_shared_widths_go_in_rounds_too():
    x = keras.Input((5, 8))
    y = L.Dense(8)(x) + L.MultiHeadAttention(8, 6, name="attention")(x, x)
    model = keras.Model(x, L.Dense(2)(L.Concatenate()([y, L.Dense(5)(x)])))
    randomize(model)
    found = [
        apply_technique(km.PruneChannels(0.6, rounds=n, verify=False), model)[0]
        for n in (1, 3)
    ]
    shapes = [[tuple(v.shape) for v in small.weights] for small in found]
    assert shapes[0] == shapes[1]


@pytest.mark.one_backend
@pytest.mark.parametrize("of", ["parameters", "memory"])
def test_rounds_reach_a_budget(of):
    model = residual()
    count = {"parameters": lambda m: m.count_params(), "memory": peak_activation_bytes}
    small, _ = apply_technique(
        km.PruneChannels(0.5, of=of, rounds=2, verify=False), model
    )
    assert 0.3 < count[of](small) / count[of](model) <= 0.5


def test_km_compress_trains_after_every_round():
    widths = []

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            widths.append(self.model.layers[1].units)

    model = chain((4,), L.Dense(16), L.Dense(2))
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    result = km.compress(
        model,
        km.PruneChannels(0.75, rounds=2),
        data=(x, x[:, :2]),
        fine_tune_epochs=1,
        callbacks=[Watch()],
    )
    assert widths == [8, 4]
    assert result.report.steps[0]["rounds"] == 2


def test_a_round_is_verified_and_told_of():
    found = prune_channels(residual(), km.PruneChannels(0.5, scope="isomorphic"))
    assert found.error <= 1e-5
    _, changes = apply_technique(km.PruneChannels(0.5, rounds=2), residual())
    told = [c.detail for c in changes if c.weight == "stem/kernel"]
    assert told == ["(1, 1, 3, 6) to (1, 1, 3, 5)", "(1, 1, 3, 5) to (1, 1, 3, 3)"]
