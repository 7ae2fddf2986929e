"""One model for every operation whose channels are known."""

import keras
import pytest
from keras import ops

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.apply import prune_channels
from kerasmem.errors import ModelError
from kerasmem.graph.channels import label_channels
from kerasmem.graph.channels.groups import find_groups
from tests.graph.channels.strategies import ANY, SHAPES, L, randomize
from tests.models import from_origin

pytestmark = pytest.mark.one_backend

CASES = [
    (kind, name)
    for kind, (_, own) in SHAPES.items()
    for name in own
    if kind != "tokens" and name not in ANY
] + [("sequence", name) for name in ANY if name != "unknown"]


def groups_of(model):
    groups = find_groups(label_channels(model).labels)
    return [len(members) for members in groups.members], groups.keys, groups.tied


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_channels_next_to_an_operation_go_and_the_rest_computes_the_same(kind, name):
    shape, own = SHAPES[kind]
    numbers = iter([3, 2, 2, 2, 2, 2])

    def number(low, high):
        return min(max(next(numbers), low), high)

    inputs = keras.Input(shape)
    x = (own | ANY)[name](L.Dense(6)(inputs), number, lambda names: max(names, key=str))
    x = L.Flatten()(L.Dense(4)(x))
    model = keras.Model(inputs, L.Dense(2)(x))
    randomize(model)
    # Calls from a file have lists where those of a fresh model have tuples.
    saved = from_origin(model, "reloaded")
    assert groups_of(saved) == groups_of(model)
    found = prune_channels(saved, PruneChannels(0.5, criterion="random"))
    assert found.error <= 1e-4
    assert found.unknown == {}
    assert found.model.count_params() < model.count_params()


@pytest.mark.parametrize("followed", [False, True])
def test_a_kernel_keeps_what_one_of_its_calls_must_keep(followed):
    shared = L.EinsumDense("abc,cd->abd", (4, 6))
    inputs = keras.Input((4,), dtype="int32")
    x = shared(L.Embedding(7, 6)(inputs))
    x = shared(x if followed else ops.cumsum(x, axis=-1))
    model = keras.Model(inputs, L.Dense(2)(L.Flatten()(x)))
    randomize(model)
    if not followed:
        with pytest.raises(ModelError, match="Cumsum"):
            prune_channels(model, PruneChannels(0.5))
        return
    found = prune_channels(model, PruneChannels(0.5, criterion="random"))
    assert found.error <= 1e-4
    assert shared.kernel.shape == (6, 6)
    assert found.model.layers[2].kernel.shape == (3, 3)
